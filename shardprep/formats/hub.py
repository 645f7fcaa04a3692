"""A tokenizer by its name on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from shardprep.errors import TokenizerError

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"


def from_hub(name: str) -> tuple[bytes, bytes | None]:
    """Return the bytes of tokenizer.json, and of tokenizer_config.json where there is one.

    `name` is "owner/model", with "@revision" after it where a commit or tag is meant. Files come from the hub's own
    cache where the hub cannot be reached. Raises TokenizerError, which says what to do instead.
    """
    data = _fetch(name, TOKENIZER)
    if data is None:
        raise _error(name, "it has no tokenizer.json")
    return data, _fetch(name, CONFIG)


def _fetch(name: str, file: str) -> bytes | None:
    """Return a file's bytes, None where the model has no such file."""
    import huggingface_hub  # slow to import, and needed for hub names alone
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    model, _, revision = name.partition("@")
    try:
        return Path(huggingface_hub.hf_hub_download(model, file, revision=revision or None)).read_bytes()
    except LocalEntryNotFoundError as error:
        # Not in the cache, and the hub cannot be asked. Only where the cache knows that there is no such file is that
        # an answer: without its config a model might get another end token than yesterday.
        known = huggingface_hub.try_to_load_from_cache(model, file, revision=revision or None)
        if known is not None and not isinstance(known, str):
            return None
        raise _error(name, _first_line(error)) from error
    except EntryNotFoundError:
        return None
    except Exception as error:
        raise _error(name, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _error(name: str, reason: str) -> TokenizerError:
    return TokenizerError(
        f"no tokenizer {name!r}: it is no file here, and on the Hugging Face hub: {reason}. Give the path or URI of a "
        "tokenizer.json, or a hub name (owner/model) while the hub can be reached",
        name=name,
    )
