"""From the names of a trainer's parameters to the names in the checkpoint, which are those that engines read.

Wrappers add parts to the names: torch.compile `_orig_mod`, activation checkpointing `_checkpoint_wrapped_module`, FSDP1
`_fsdp_wrapped_module`, DistributedDataParallel a leading `module`. They are taken off first.
"""

from typing import Callable, Iterable, Mapping

from headrace.errors import InputError

# What publisher.Publisher takes as `names`, in terms of names without wrappers. None leaves a tensor out: a value head,
# which no engine reads.
Names = Mapping[str, str | None] | Callable[[str], str | None]

_ANYWHERE = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


def unwrapped(name: str) -> str:
    """`name` without what wrappers have added."""
    parts = [part for part in name.split(".") if part not in _ANYWHERE]
    while len(parts) > 1 and parts[0] == "module":
        parts.pop(0)
    return ".".join(parts)


def checkpoint_names(parameters: Iterable[str], names: Names | None) -> dict[str, str]:
    """The checkpoint's name of each of `parameters`; those that are left out are not in it.

    names: None: the parameters' own names; a mapping: from a parameter's name to the checkpoint's, names that it lacks
    stay; a function: called with each. Raises InputError `malformed` for two parameters with one name in the
    checkpoint, or an empty one.
    """
    plain = {parameter: unwrapped(parameter) for parameter in parameters}
    if names is None:
        renamed: dict[str, str | None] = dict(plain)
    elif callable(names):
        renamed = {parameter: names(name) for parameter, name in plain.items()}
    else:
        renamed = {parameter: names.get(name, name) for parameter, name in plain.items()}
    found: dict[str, str] = {}
    for parameter, name in renamed.items():
        if name is None:
            continue
        if not isinstance(name, str) or not name:
            raise InputError("malformed", f'names gives {name!r} for "{parameter}"; it must be a name or None')
        if name in found:
            raise InputError(
                "malformed", f'parameters "{found[name]}" and "{parameter}" both have the name "{name}"', tensor=name
            )
        found[name] = parameter
    return {parameter: name for name, parameter in found.items()}


def refuse_strangers(parameters: Iterable[str], names: Names | None) -> None:
    """InputError `unknown_tensor` when the mapping `names` has a name that none of `parameters`, of all ranks, has."""
    if names is None or callable(names):
        return
    strangers = sorted(names.keys() - {unwrapped(parameter) for parameter in parameters})
    if strangers:
        raise InputError(
            "unknown_tensor",
            f"names has {', '.join(strangers[:10])}{', ...' if len(strangers) > 10 else ''} ({len(strangers)} names), "
            "which no rank of the trainer has",
            tensor=strangers[0],
        )
