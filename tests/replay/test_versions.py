"""echo_replay works with the very echo_core that it was compiled against, and refuses every other."""

from __future__ import annotations


def test_another_core_is_refused_before_a_compiled_module_is_imported(python) -> None:
    python(
        """
        import sys
        import echo_core
        from echo_core import PluginError
        echo_core.__version__ = "0.0.9"
        try:
            import echo_replay.tables.replay_table
        except PluginError as error:
            assert "works with echo-core" in str(error) and "this is echo-core 0.0.9" in str(error) and "echo-core[replay]" in str(error), error
        else:
            raise AssertionError("it was imported")
        assert "echo_replay.tables.replay_table" not in sys.modules
        """
    )
