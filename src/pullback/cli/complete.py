"""Shell completion of names."""

from __future__ import annotations

from collections.abc import Iterable


def _begins(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def families(incomplete: str) -> list[str]:
    import pullback

    return _begins(pullback._FAMILIES, incomplete)


def contests(incomplete: str) -> list[str]:
    """What `bench` takes: families, and the small costs of calls."""
    from pullback.bench.overhead import NAME

    return families(incomplete) + _begins([NAME], incomplete)


def sections(incomplete: str) -> list[str]:
    from pullback.bench.run import SECTIONS

    return _begins(SECTIONS, incomplete)


def laws(incomplete: str) -> list[str]:
    """What `verify` takes: ops and families."""
    from pullback.verify.subject import subjects

    return families(incomplete) + _begins(subjects(), incomplete)


def names(incomplete: str) -> list[str]:
    """What `show` takes."""
    from pullback.bench.inventory import names as known

    return _begins(known(), incomplete)


def dtypes(incomplete: str) -> list[str]:
    from pullback.contract.element import FLOATS

    return _begins((kind.value for kind in FLOATS), incomplete)
