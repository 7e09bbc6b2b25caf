"""What tests need: a clock that obeys, and the suite that every store must pass.

A backend of your own is checked by a short adapter::

    class TestMyStore(LeaseStoreSuite):
        @pytest.fixture
        def adapter(self):
            return MyAdapter()
"""

from __future__ import annotations

from contextlib import suppress
from pkgutil import iter_modules

with suppress(ModuleNotFoundError):  # without pytest there is only the clock to use
    import pytest

    # The suite is no test module, so its assertions must be told to explain themselves.
    pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from anarchon_tasks.testing._clock import ManualClock
from anarchon_tasks.testing._lab import Lab, StoreAdapter
from anarchon_tasks.testing._suite import LeaseStoreSuite
from anarchon_tasks.testing._suite_format import FormatAdapter

__all__ = ["FormatAdapter", "Lab", "LeaseStoreSuite", "ManualClock", "StoreAdapter"]
