"""The doctor's report, as text for people and as data for programs."""

from typing import Any

from .environment_facts import Surroundings
from .findings import Finding, Level, examine

VERDICTS = {
    Level.NOTE: "The xla device works.",
    Level.WARNING: "The xla device works, but see the warnings.",
    Level.ERROR: "The xla device does not work here.",
}


def worst(findings: list[Finding]) -> Level:
    """Return the level of the worst finding; that of a note if there is none."""
    return max((finding.level for finding in findings), default=Level.NOTE)


def as_text(around: Surroundings, findings: list[Finding]) -> str:
    """Return the report, the findings last: they end up above the prompt."""
    rows = [VERDICTS[worst(findings)], ""]
    for title, lines in _sections(around).items():
        rows += [title, *(f"  {line}" for line in lines), ""]
    for finding in findings:
        rows += [f"{finding.level.name}: {finding.what}", f"  remedy: {finding.remedy}"]
    return "\n".join(rows if findings else rows[:-1]) + "\n"


def as_data(around: Surroundings, findings: list[Finding]) -> dict[str, object]:
    """Return the report as what JSON has."""
    return {
        "works": worst(findings) is not Level.ERROR,
        "status": int(worst(findings)),
        "python": ".".join(map(str, around.python)),
        "executable": around.executable,
        "packages": around.packages,
        "torch_backends": list(around.torch_backends),
        "jax_plugins": list(around.jax_plugins),
        "hardware": list(around.hardware),
        "settings": around.settings,
        "stages": around.stages,
        "findings": [
            {"level": finding.level.name.lower(), "what": finding.what, "remedy": finding.remedy}
            for finding in findings
        ],
    }


def diagnose(around: Surroundings) -> tuple[str, dict[str, Any]]:
    """Return the report in both forms."""
    findings = examine(around)
    return as_text(around, findings), as_data(around, findings)


def _sections(around: Surroundings) -> dict[str, list[str]]:
    python = f"python {'.'.join(map(str, around.python))}  {around.executable}"
    packages = [f"{name} {version}" for name, version in around.packages.items()]
    built_for = around.stages.get("torch", {}).get("cuda")
    if built_for:
        packages = [f"{row} (built for CUDA {built_for})" if row.startswith("torch ") else row for row in packages]
    sections = {"Packages": [python, *packages], "Devices": _devices(around)}
    sections["Plugins"] = [f"of JAX: {', '.join(around.jax_plugins) or 'none'}"]
    if around.torch_backends:
        sections["Plugins"].append(f"of PyTorch: {', '.join(around.torch_backends)}")
    sections["Settings"] = [f"{name}={value}" for name, value in around.settings.items()] or ["none"]
    return sections


def _devices(around: Surroundings) -> list[str]:
    hardware = f"hardware found: {', '.join(around.hardware) or 'a CPU'}"
    facts = around.stages.get("device", {})
    if facts.get("state") != "ended":
        return [hardware, "none started"]
    names = [f"xla:{index} is {name} ({facts['kind']})" for index, name in enumerate(facts["names"])]
    size = f"memory of each: {facts['bytes'] / 2**30:.1f} GiB" if facts.get("bytes") else ""
    return [hardware, *names, *([size] if size else []), *_first_step(around.stages.get("computation", {}))]


def _first_step(facts: dict[str, Any]) -> list[str]:
    if "seconds" not in facts:
        return []
    kept = f"long ones are kept in {facts['kept_in']}" if facts["kept_in"] else "no program is kept on disk"
    return [f"a first step is compiled: one product took {facts['seconds']:.1f} s, a model takes longer; {kept}"]
