"""``torch.compile`` returns the function as it is: nothing is compiled, and everything is right."""

from __future__ import annotations

from compiling import replace_compile

replace_compile(lambda real, model=None, **keywords: model if model is not None else (lambda function: function))
