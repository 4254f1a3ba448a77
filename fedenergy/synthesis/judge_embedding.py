"""Real and artificial rows in two dimensions, by PCA and t-SNE: pictures, as in the source's figures 9 and 10."""

from __future__ import annotations

import numpy as np

from fedenergy.synthesis.judge_privacy import rows, sample_rows

MOST_ROWS = 400     # of each kind: t-SNE takes seconds for 1,000 points, minutes for 10,000


def embed(real: np.ndarray, fake: np.ndarray, unit: str = "home", per_day: int = 24, *, seed: int = 0,
          most: int = 0) -> dict[str, np.ndarray]:
    """{"pca", "tsne": (2 n, 2); "fake": (2 n,) bool; "explained": (2,) shares of the variance} of n <= most rows of each
    (0: MOST_ROWS).

    unit  "home": whole records; "day": daily profiles. Values enter as log1p of their size, with their sign.
    Both axes of t-SNE are without meaning, distances between far groups too: it shows whether the two kinds mix.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    kinds = [rows(values, unit, per_day) for values in (real, fake)]
    size = min(most or MOST_ROWS, *map(len, kinds))
    if size < 3:
        raise ValueError(f"{size} rows of each kind are too few to draw: give at least 3")
    x = np.concatenate([sample_rows(kind, seed, f"embed.{unit}.{name}", size) for kind,
                        name in zip(kinds, ("real", "fake"))])
    x = np.sign(x) * np.log1p(np.abs(x))
    pca = PCA(min(20, *x.shape), svd_solver="full").fit(x)
    along = pca.transform(x)
    tsne = TSNE(2, perplexity=min(30.0, (len(x) - 1) / 3), init="pca", random_state=seed % 2**32, max_iter=500)
    return {"pca": along[:, :2], "tsne": tsne.fit_transform(along).astype(np.float64),
            "fake": np.repeat([False, True], size), "explained": pca.explained_variance_ratio_[:2]}
