"""Measure samples per second, now and overall."""

import time

from .. import config


class RateTracker:
    """Counts samples and computes their rate, smoothed between readings.

    `smooth_factor`, from 0 to 1, is how much of the last reading remains in the next one; `RATE_TRACKER_SMOOTHING`
    if it is not given, and 0.4 without that.

    >>> tracker = RateTracker(smooth_factor=0.4)
    >>> tracker.add(32)
    >>> tracker.rate() > 0 and tracker.global_rate() > 0
    True
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._kept = config.rate_tracker_smoothing() if smooth_factor is None else smooth_factor
        if not 0 <= self._kept <= 1:
            name = "RATE_TRACKER_SMOOTHING" if smooth_factor is None else "smooth_factor"
            raise ValueError(f"{name} is {self._kept}; it must be between 0 and 1")
        self._start = self._last_read = time.perf_counter()
        self._total = self._since_read = 0.0
        self._smoothed: float | None = None

    def add(self, count: float) -> None:
        """Count `count` more samples."""
        self._total += count
        self._since_read += count

    def rate(self) -> float:
        """Return samples per second since the last call of this, smoothed with the earlier ones."""
        now = time.perf_counter()
        current = _ratio(self._since_read, now - self._last_read)
        if self._smoothed is not None:
            current = self._kept * self._smoothed + (1 - self._kept) * current
        self._smoothed = current
        self._last_read = now
        self._since_read = 0.0
        return current

    def global_rate(self) -> float:
        """Return samples per second since this tracker was made."""
        return _ratio(self._total, time.perf_counter() - self._start)


def _ratio(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
