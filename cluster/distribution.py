"""A check, at start-up, that the four packages are ours.

Their names are generic: another distribution that installs a package of the same name overwrites
ours without a word, and what runs then is a mixture.
"""

from collections.abc import Mapping, Sequence
from importlib import metadata

from cluster.errors import Unsupported

DISTRIBUTION = "destrier"
PACKAGES = ("cluster", "udtf", "actors", "serve_app")


def check_packages(owners: Mapping[str, Sequence[str]] | None = None) -> None:
    """Check that no other distribution owns a package of ours; `owners` is for tests.

    A plain checkout, of which nothing is installed, is fine.

    Raises:
        Unsupported: names the package and its owners.
    """
    known = metadata.packages_distributions() if owners is None else owners
    for package in PACKAGES:
        others = sorted(set(known.get(package, ())) - {DISTRIBUTION})
        if others:
            raise Unsupported(
                f"the package {package!r} is also installed by {', '.join(others)};"
                f" install {DISTRIBUTION} in an environment of its own"
            )
