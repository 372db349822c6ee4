"""The front door as a caller's type checker sees it: part of the checked files, and never run."""

from typing import assert_type

import reticent


def use_the_front_door(texts: list[str], records: list[dict[str, str]]) -> None:
    """Every public name, with the type that a caller relies on."""
    run = reticent.build_worlds(texts, worlds=16, out="run", options=reticent.BuildOptions(epochs=2, dtype="bfloat16"))
    assert_type(run, reticent.Run)
    assert_type(reticent.build_worlds(records, text_key="body", unit_key="owner", out="run", resume=True), reticent.Run)
    assert_type(reticent.open_run("run").num_worlds, int)
    try:
        with run.deploy(step_budget="2^-32", total_budget=2.3e-4, release="mixture") as deployment:
            assert_type(deployment, reticent.Deployment)
            answer = deployment.generate("Dear Dr", max_tokens=48)
            assert_type(answer, reticent.Answer)
            for token in answer:
                assert_type(token, reticent.Token)
                assert_type(token.text, str)
            assert_type(answer.stopped_by, reticent.StopReason | None)
            assert_type(deployment.spent, float)
            assert_type(deployment.left, float | None)
            assert_type(deployment.bounds(), reticent.Bounds)
        run.deploy(release=reticent.ReleaseMechanism.GAUSSIAN).close()
    except reticent.ReticentError as error:
        assert_type(error.exit_code, int)
    assert_type(reticent.plan(tokens=10, step_budget=1e-9), reticent.BudgetPlan)
    assert_type(reticent.plan(guarantee="corpus", tokens=10, total_rho=1.0, worlds=64), reticent.CorpusPlan)
    assert_type(reticent.plan(guarantee=reticent.Guarantee.CORPUS, tokens=10, gain=1, worlds=9), reticent.CorpusPlan)
    options = reticent.AuditOptions(world=3)
    result = reticent.audit(run, members=texts, nonmembers="others.jsonl", attacks=["lira"], options=options)
    assert_type(result, reticent.Audit)
    assert_type(result.result.warnings, tuple[str, ...])
    reticent.no_such_name  # type: ignore[attr-defined] # noqa: B018
    run.deploy(step_budget=None)  # type: ignore[arg-type]
