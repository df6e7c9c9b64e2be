"""A harness of verifiers that asks the model once, in this process; found by its module name, as harnesses are."""

from __future__ import annotations

from typing import Any

import httpx
import verifiers.v1 as vf

__all__ = ["DirectHarness"]


class DirectConfig(vf.HarnessConfig):
    """Nothing to configure."""


class DirectHarness(vf.Harness[DirectConfig]):
    """The task's system prompt and its prompt, one reply."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        **unused: Any,
    ) -> vf.ProgramResult:
        messages = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        messages.append({"role": "user", "content": data.prompt})
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            response = await http.post(
                f"{endpoint}/chat/completions",
                headers={"authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        response.raise_for_status()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
