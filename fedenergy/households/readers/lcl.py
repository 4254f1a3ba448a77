"""Low Carbon London, as one long table: LCLid, tstp, energy_kwh_hh; or as published: LCLid, stdorToU, DateTime, KWH/hh."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from fedenergy.households.household import check_household_id
from fedenergy.households.readers.kinds import recognise
from fedenergy.households.readers.layout import stamp_row, stamps
from fedenergy.households.readers.series import Series
from fedenergy.households.readers.sheet import head, read_sheet
from fedenergy.households.readers.sheet import numbers as numbers_of
from fedenergy.households.readers.table import numbers, on_grid, read_table, seconds


def read_lcl(path: Path) -> dict[str, Series]:
    """Every home's half-hours (column kwh), by id in lower case ("mac000002"), ids sorted.

    Clock: GMT all year, 48 steps every day; stamps are beginnings. Blank and "Null" readings are missing.
    A home's series covers the days from its first row to its last.
    """
    if b"tstp" not in head(path, 4_096).split(b"\n", 1)[0]:
        return _raw(path)
    table = read_table(path, {"LCLid": pa.dictionary(pa.int32(), pa.string()), "tstp": pa.timestamp("ns"),
                              "energy_kwh_hh": pa.float64()}, missing=("", "Null"))
    codes = table["LCLid"].unify_dictionaries().combine_chunks()
    names = codes.dictionary.to_pylist()
    codes, when, kwh = codes.indices.to_numpy(), seconds(table["tstp"]), numbers(table, ["energy_kwh_hh"])
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    homes = {}
    for code, name in enumerate(names):
        rows = order[bounds[code]:bounds[code + 1]]
        home = check_household_id(name.strip().lower())
        if home in homes:
            raise ValueError(f"{path.name}: two homes become the id {home!r}; give them ids that differ"
                             " in more than case and blanks")
        homes[home] = on_grid(when[rows], kwh[rows], ["kwh"], 30, home)
    return dict(sorted(homes.items()))


def _raw(path: Path) -> dict[str, Series]:
    """The publisher's own form: a heading that ends in a blank, padded values, "Null" on seconds off the grid."""
    sheet = read_sheet(path, stamp_row)
    found = recognise(sheet)
    if found is None or found[0].kind != "lcl":
        raise ValueError(f"{path.name} has no columns LCLid, tstp, energy_kwh_hh, nor LCLid, DateTime, KWH/hh "
                         f"(its header: {', '.join(sheet.header[:12])})")
    layout = found[0]
    when, kwh = stamps(sheet, layout)[0], numbers_of(sheet, layout.channels[0].column, ".")[0]
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(sheet.column(layout.meter)):
        rows.setdefault(check_household_id(name.strip().lower()), []).append(row)
    return {home: on_grid(when[rows[home]], kwh[rows[home], None], ["kwh"], 30, home) for home in sorted(rows)}
