"""Which class of transformers a folder's model is of: with a head that says what comes next, with another one, or none."""

from __future__ import annotations

from typing import Any

from rotoscope.errors import ModelError


def model_class(config: Any, called: str) -> Any:
    """The Auto class that loads a configuration's model.

    One that says the next token, where the configuration names none: of text, of text and pictures, of masked text. What it
    names (`architectures`) is taken where it is one of these, or such a model without its head. Models that are neither
    are not loaded: some of them fetch parts from elsewhere.
    """
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM

    heads = (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM)
    known = [one for one in heads if type(config) in one._model_mapping]
    if not known:
        raise ModelError(
            f"{called} holds a model of type '{config.model_type}', for which transformers has no class that reads text; "
            "rotoscope reads language models, encoders of text and the text part of models of pictures and text"
        )
    named = config.architectures[0] if config.architectures else None
    return next((one for one in (*known, AutoModel) if named in _names(one, config)), known[0])


def _names(auto: Any, config: Any) -> list[str]:
    """The classes that an Auto class would take for a configuration."""
    found = auto._model_mapping.get(type(config), ())
    return [kind.__name__ for kind in (found if isinstance(found, (tuple, list)) else (found,))]
