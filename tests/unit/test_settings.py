"""Settings: where values come from, what is refused, and how they are shown."""

import tomllib
from pathlib import Path

import pytest

from cluster.errors import InvalidInput
from cluster.settings import (
    ENVIRONMENT_ALIASES,
    Section,
    Settings,
    environment_name,
    load_settings,
)
from serve_app.commands.settings import MASK, effective, reference

REPOSITORY = Path(__file__).parents[2]
SECTIONS = list(Settings.model_fields)
SECRETS = {
    "DESTRIER_ADMIN_KEY": "a key that nobody may see",
}


def every_field() -> list[tuple[str, str]]:
    found = []
    for section, info in Settings.model_fields.items():
        assert isinstance(info.annotation, type) and issubclass(info.annotation, Section)
        found += [(section, field) for field in info.annotation.model_fields]
    return found


def config_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "destrier.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("section", "field"), every_field())
def test_every_setting_says_what_it_means(section: str, field: str) -> None:
    model = Settings.model_fields[section].annotation
    assert isinstance(model, type) and issubclass(model, Section)
    description = model.model_fields[field].description
    assert description and len(description) >= 15 and description.rstrip().endswith(".")


def test_without_anything_set_the_defaults_hold_and_have_no_source() -> None:
    loaded = load_settings(environment={})
    assert loaded.settings == Settings()
    assert loaded.sources == {}


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path,
) -> None:
    config = config_file(tmp_path, "[http]\nport = 1\nhost = '10.0.0.1'\nreplicas = 3\n")
    environment = {"DESTRIER_PORT": "2", "DESTRIER_HTTP_HOST": "10.0.0.2"}
    loaded = load_settings(config, environment, {("http", "port"): 3})
    http = loaded.settings.http
    assert (http.port, http.host, http.replicas) == (3, "10.0.0.2", 3)
    assert loaded.sources == {
        "http.port": "command line",
        "http.host": "DESTRIER_HTTP_HOST",
        "http.replicas": str(config),
    }


def test_the_full_variable_wins_over_the_short_one() -> None:
    environment = {"DESTRIER_PORT": "1", "DESTRIER_HTTP_PORT": "2"}
    loaded = load_settings(environment=environment)
    assert loaded.settings.http.port == 2
    assert loaded.sources["http.port"] == "DESTRIER_HTTP_PORT"


def test_every_short_variable_names_a_setting() -> None:
    assert set(ENVIRONMENT_ALIASES.values()) <= set(every_field())
    assert not set(ENVIRONMENT_ALIASES) & {environment_name(*at) for at in every_field()}


def test_lists_in_the_environment_are_separated_by_commas() -> None:
    loaded = load_settings(environment={"DESTRIER_AUTH_JWT_ALGORITHMS": "RS256, ES256,"})
    assert loaded.settings.auth.jwt_algorithms == ("RS256", "ES256")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[http]\nport = 'x'\n", "http.port"),
        ("[http]\nport = 70000\n", "http.port"),
        ("[http]\nprot = 1\n", "http.prot"),
        ("[htpp]\nport = 1\n", "htpp"),
        ("port = 1\n", "port"),
        ("[http\n", "cannot read"),
        ("[limits]\nupdates_max = 0\n", "limits.updates_max"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_the_setting(
    tmp_path: Path, text: str, says: str
) -> None:
    config = config_file(tmp_path, text)
    with pytest.raises(InvalidInput, match=says) as refusal:
        load_settings(config, {})
    assert str(config) in refusal.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read settings"):
        load_settings(tmp_path / "absent.toml", {})


def test_a_wrong_variable_is_named_and_its_value_is_not() -> None:
    with pytest.raises(InvalidInput, match="DESTRIER_AUTH_MODE") as refusal:
        load_settings(environment={"DESTRIER_AUTH_MODE": "perhaps"})
    assert "perhaps" not in refusal.value.message


def test_the_effective_settings_are_a_settings_file_with_the_same_effect(tmp_path: Path) -> None:
    environment = {
        "DESTRIER_PORT": "99",
        "DESTRIER_ROOT": 'a "quoted" \\ path',
        "DESTRIER_AUTH_JWT_JWKS_URL": "https://issuer/keys",
        "DESTRIER_RAY_DASHBOARD": "true",
    }
    loaded = load_settings(environment=environment)
    shown = effective(loaded, SECTIONS)
    again = load_settings(config_file(tmp_path, shown), {})
    assert again.settings == loaded.settings
    assert set(tomllib.loads(shown)) == set(SECTIONS)


def test_the_effective_settings_name_each_source(tmp_path: Path) -> None:
    config = config_file(tmp_path, "[http]\nreplicas = 3\n")
    lines = effective(load_settings(config, {"DESTRIER_PORT": "99"}), ["http"]).splitlines()
    assert "port = 99  # DESTRIER_PORT" in lines
    assert f"replicas = 3  # {config}" in lines
    assert 'host = "127.0.0.1"  # default' in lines


def test_an_unset_setting_is_shown_as_unset() -> None:
    shown = effective(load_settings(environment={}), ["auth"])
    assert "# admin_key is not set  # default" in shown.splitlines()


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    config = config_file(
        tmp_path, "[storage]\noptions = { aws_secret_access_key = 'another secret' }\n"
    )
    loaded = load_settings(config, SECRETS)
    shown = effective(loaded, SECTIONS)
    assert f'admin_key = "{MASK}"  # DESTRIER_ADMIN_KEY' in shown
    assert f'options = {{"aws_secret_access_key" = "{MASK}"}}' in shown
    for text in (shown, repr(loaded), str(loaded.settings)):
        assert "nobody may see" not in text
        assert "another secret" not in text


def test_the_reference_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference(SECTIONS)
    monkeypatch.setenv("DESTRIER_PORT", "99")
    assert reference(SECTIONS) == before


def test_the_reference_has_one_row_per_setting() -> None:
    rows = [line for line in reference(SECTIONS).splitlines() if line.startswith("| `")]
    names = [line.split("`")[1] for line in rows]
    assert names == [field for _, field in every_field()]
    assert all(line.count(" | ") == 4 for line in rows)


def test_the_committed_reference_is_the_printed_one() -> None:
    committed = (REPOSITORY / "docs" / "settings.md").read_text()
    assert committed == reference(SECTIONS), "run: destrier settings --markdown > docs/settings.md"
