"""The byte scan of `fedenergy audit`, under the name that the leak tests use."""

from fedenergy.privacy.audit_scan import Hit, Needles, files_in, sqlite_rows

__all__ = ["Hit", "Needles", "files_in", "sqlite_rows"]
