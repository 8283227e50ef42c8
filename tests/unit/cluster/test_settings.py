"""Settings: which source wins, and one clear line for each mistake."""

from pathlib import Path

import pytest

from turnwire.cluster.settings import Settings, SettingsError, load


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "turnwire.toml") -> Path:
    path = Path(name).resolve()
    path.write_text(text)
    return path


def test_flags_win_over_environment_over_file_over_defaults() -> None:
    write("[gateway]\nport = 1\nhost = '127.0.0.9'\nmax_connections = 7\n")
    environ = {"TURNWIRE_GATEWAY__PORT": "2", "TURNWIRE_GATEWAY__HOST": "127.0.0.8"}
    gateway = load(environ, flags={"gateway": {"port": 3}}).gateway
    assert (gateway.port, gateway.host, gateway.max_connections) == (3, "127.0.0.8", 7)
    assert gateway.ping_s == Settings().gateway.ping_s


def test_nested_sections_are_set_from_the_environment() -> None:
    assert load({"TURNWIRE_GATEWAY__SESSION__MAX_LANES": "5"}).gateway.session.max_lanes == 5


def test_a_model_table_replaces_the_default_one() -> None:
    write("[[models]]\nname = 'mine'\nengine = 'simulated'\n[models.simulated]\ntick_s = 0.5\n")
    (model,) = load({}).models
    assert (model.name, model.simulated.tick_s) == ("mine", 0.5)


def test_lists_and_tables_are_json_in_the_environment() -> None:
    environ = {"TURNWIRE_MODELS": '[{"name": "a", "engine": "simulated"}]'}
    assert [model.name for model in load(environ).models] == ["a"]


def test_paths_are_absolute_and_the_database_lies_in_the_data_folder(tmp_path: Path) -> None:
    settings = load({}, flags={"data": "here"})
    assert settings.data == str(tmp_path / "here")
    assert settings.storage.url == f"sqlite:///{tmp_path}/here/turnwire.db"
    assert settings.billing.url == settings.storage.url


def test_a_tokenizer_is_a_path_unless_it_names_a_vocabulary(tmp_path: Path) -> None:
    rows = [
        {"name": name, "engine": "llama", "tokenizer": tokenizer}
        for name, tokenizer in (("a", "tokenizer.json"), ("b", "splintr:qwen3"), ("c", ""))
    ]
    found = load({}, flags={"models": rows}).models
    expected = [str(tmp_path / "tokenizer.json"), "splintr:qwen3", ""]
    assert [model.tokenizer for model in found] == expected


def test_a_database_named_by_hand_stays_where_it_was_put() -> None:
    environ = {"TURNWIRE_STORAGE__URL": "sqlite:////var/lib/t.db", "TURNWIRE_DATA": "here"}
    assert load(environ).storage.url == "sqlite:////var/lib/t.db"


def test_a_named_file_is_read_instead_of_the_default_one() -> None:
    write("[gateway]\nport = 1\n")
    other = write("[gateway]\nport = 4\n", "other.toml")
    assert load({}, other).gateway.port == 4


@pytest.mark.parametrize(
    ("environ", "file", "message"),
    [
        (
            {"TURNWIRE_GATEWAY__PROT": "1"},
            "",
            "gateway.prot in the environment: no such setting; did you mean 'port'?",
        ),
        ({}, "[gatewya]\nport = 1", "gatewya in turnwire.toml: no such setting; did you mean 'ga"),
        ({}, "[gateway]\nport = 'x'", "gateway.port in turnwire.toml: Input should be a valid int"),
        (
            {},
            "[[models]]\nname = 'a'\nengine = 'llama'\n[models.llama]\nslotz = 1",
            "models.0.llama.slotz in turnwire.toml: no such setting; did you mean 'slots'?",
        ),
        ({}, "[gateway", "turnwire.toml is not valid TOML"),
        ({"TURNWIRE_MODELS": "[{"}, "", "TURNWIRE_MODELS: not valid JSON"),
        ({"TURNWIRE_RAY": "x", "TURNWIRE_RAY__FOLDER": "y"}, "", "ray is set as a whole and in"),
        ({}, "models = []", "no models"),
        (
            {},
            "[[models]]\nname='a'\nengine='simulated'\n"
            "[[models]]\nname='b'\naliases=['a']\nengine='simulated'",
            "two models are called 'a'",
        ),
        (
            {"TURNWIRE_NONSENSE": "1"},
            "",
            "nonsense in the environment: no such setting; known here",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_setting_and_source(
    environ: dict[str, str], file: str, message: str
) -> None:
    write(file)
    with pytest.raises(SettingsError) as raised:
        load(environ)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_named_must_exist() -> None:
    with pytest.raises(SettingsError, match=r"cannot read missing\.toml: No such file"):
        load({}, Path("missing.toml"))


def test_secrets_do_not_show() -> None:
    settings = load({"TURNWIRE_GATEWAY__API_KEY": "hunter2"})
    assert settings.gateway.api_key is not None
    assert settings.gateway.api_key.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(settings)
