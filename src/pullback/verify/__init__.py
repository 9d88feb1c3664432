"""Laws x ops x dtypes x layouts, and the measure they are checked with. Users can run them too."""

from pullback.verify.run import Verdict, verify

__all__ = ["Verdict", "verify"]
