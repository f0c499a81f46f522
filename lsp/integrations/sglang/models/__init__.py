"""Models for SGLang that it does not have: with SGLANG_EXTERNAL_MODEL_PACKAGE=lsp.integrations.sglang.models."""
