"""One small local Ray for all tests of a module."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_prestart_worker_first_driver": "0",
}


@pytest.fixture(scope="module")
def ray_local() -> Iterator[Path]:
    """A folder of Ray's, short enough for sockets beside it."""
    with tempfile.TemporaryDirectory(prefix="tw") as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=2,
            object_store_memory=100 * 1024 * 1024,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
        )
        try:
            yield Path(folder)
        finally:
            ray.shutdown()
