"""The package agentlightning 1.0.2, unchanged, against `fulgur serve`: its
client, its local controller with a small agent, its Kubernetes controller's
calls, and its trainer's rollout manager with pause and drain.

AGL_URL, AGL_SERVER_KEY: the server. MODEL_URL, MODEL: the model server and the
name that the gateway was started with. Prints a line for each part that passed.
"""

import asyncio
import json
import os
import threading
import time
import urllib.request

URL, KEY, MODEL_URL, MODEL = (os.environ[k] for k in ("AGL_URL", "AGL_SERVER_KEY", "MODEL_URL", "MODEL"))


class Agent:
    """What the local controller runs, in a process of its own: two calls that
    extend each other, an event of its own, and a reward."""

    def run(self):
        messages = [{"role": "user", "content": os.environ["QUESTION"]}]
        for turn in ("first", "second"):
            answer = post(os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions", {"model": "any", "messages": messages, "max_tokens": 64})
            messages += [answer["choices"][0]["message"], {"role": "user", "content": turn}]
            if os.environ["QUESTION"] == "fail":
                raise SystemExit(3)
        post(os.environ["AGL_EVENT_URL"], {"event_type": "note", "data": {"turns": 2}})
        post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": float(os.environ["WORTH"]), "source": "agent"}})


def post(url, body):
    headers = {"authorization": "Bearer " + os.environ["AGL_KEY"], "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as r:
        return json.load(r)


def client_part():
    from agentlightning.client import AgentLightningSyncClient
    from agentlightning.schemas import Event, Rollout, RolloutCreate

    with AgentLightningSyncClient(base_url=URL, key=KEY, timeout=30) as c:
        assert c.get("/healthz").json() == {"status": "ok"}
        specs = [RolloutCreate(input={"i": i}, rollout_id=f"client-{i}").model_dump(mode="json", exclude_none=True) for i in range(3)]
        first = c.post_with_retry("/api/rollouts", json=specs).json()
        assert c.post_with_retry("/api/rollouts", json=specs).json() == first, "creation is not idempotent"
        assert [Rollout.model_validate(r).rollout_id for r in first] == ["client-0", "client-1", "client-2"]
        assert c.patch("/api/rollouts/client-0", json={"status": {"state": "succeeded"}}).status_code == 409
        assert c.patch("/api/rollouts/client-0", json={"status": {"state": "failed", "error_message": "no"}}).status_code == 200
        Event.model_validate(c.post("/api/rollouts/client-1/attempt/0/events", json={"event_type": "x", "data": {"a": 1}}).json())
        page = c.get("/api/rollouts/terminal", params={"after": 0}).json()
        assert [i["rollout_id"] for i in page["items"]] == ["client-0"] and page["next_after"] == page["total_terminal"] == 1, page
        for i in range(3):
            assert c.delete(f"/api/rollouts/client-{i}").status_code == 204
        assert c.get("/api/rollouts/client-1").status_code == 404
        assert AgentLightningSyncClient(base_url=URL, key="wrong").get("/api/rollouts/client-1").status_code == 401
        return c.get("/api/rollouts/terminal").json()["next_after"]


def local_config(poll=0.1):
    from omegaconf import OmegaConf

    return OmegaConf.create({"runner_type": "local", "agl_server": {"url": URL, "agent_url": None, "key": KEY}, "local_runner": {"maximum_size": 4, "poll_interval": poll}})


class Controller(threading.Thread):
    """agentlightning's local controller, until stopped."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ready = threading.Event()

    def run(self):
        asyncio.run(self.main())

    async def main(self):
        from agentlightning.client import AgentLightningAsyncClient
        from agentlightning.controller.local_reconciler import LocalReconciler

        self.loop = asyncio.get_running_loop()
        async with AgentLightningAsyncClient(base_url=URL, key=KEY) as api:
            self.reconciler = LocalReconciler(api=api, config=local_config())
            self.ready.set()
            await self.reconciler.run()

    def stop(self):
        self.ready.wait()
        self.loop.call_soon_threadsafe(self.reconciler.stop)
        self.join(20)
        assert not self.is_alive(), "the local controller does not end"


ENV_MAP = {"QUESTION": "input.question", "WORTH": "input.worth"}


def manager(cls, **more):
    return cls(agl_base_url=URL, agl_key=KEY, model=MODEL, step=1, rollout_timeout_seconds=60, poll_interval_seconds=0.1,
               local_agent_class="agl:Agent", local_env_map=ENV_MAP, **more)


def check(done, worth):
    """Two triplets, the second extending the first, with log probs and the reward."""
    assert done.rollout_state == "succeeded", (done.rollout_state, done.error_message)
    assert done.final_reward == worth, done.final_reward
    one, two = done.triplets
    ids = [(t.prompt["token_ids"], t.response["token_ids"], t.response["log_probs"]) for t in (one, two)]
    for prompt, response, log_probs in ids:
        assert prompt and response and len(log_probs) == len(response) and all(p < 0 for p in log_probs), ids
    whole = ids[0][0] + ids[0][1]
    assert ids[1][0][: len(whole)] == whole, "the second prompt does not extend the first turn"
    assert one.metadata["server"]["model"] == MODEL and two.reward == worth and one.reward is None
    assert [e["event_type"] for e in done.events] == ["model_request", "model_request", "note", "reward"], done.events
    request = done.events[0]["data"]
    assert request["status"] == "ok" and request["http_status"] == 200 and request["request"]["temperature"] == 1, request
    assert done.enqueue_time <= done.running_at <= done.finished_at, (done.enqueue_time, done.running_at, done.finished_at)


def rollout_part():
    """The trainer's rollout managers over the local controller."""
    from agentlightning.hooks import RolloutHooks
    from agentlightning.verl.agl_rollout_manager import AglAsyncRolloutManager, AglRolloutManager

    class Hooks(RolloutHooks):
        def on_succeeded(self, rollout, events, store):
            store.add_event(rollout.rollout_id, rollout.status.last_attempt_id, "hook", {"events": sum(map(len, events.values()))})

        def on_failed(self, rollout, store):
            store.add_event(rollout.rollout_id, "0", "hook", {"failed": True})

    c = Controller()
    c.start()
    m = manager(AglRolloutManager, train_rollout_n=2)
    assert [x.model for x in m.register_model([MODEL_URL])] == [MODEL]
    done = m.enqueue_and_wait_until_completed({"question": ["a", "b"], "worth": [0.5, 1]}, is_train=True)
    assert len(done) == 4
    for d in done:
        check(d, d.input["worth"])
        assert m.client.get(f"/api/rollouts/{d.rollout_id}").status_code == 404, "a read rollout was not deleted"

    m = manager(AglRolloutManager, hooks=Hooks())
    (done,) = m.enqueue_and_wait_until_completed({"question": ["val"], "worth": [0.25]}, is_train=False)
    assert done.final_reward == 0.25 and done.events[0]["data"]["request"]["temperature"] == 0.7
    assert done.events[-1]["event_type"] == "hook" and done.events[-1]["data"] == {"events": 4}, done.events[-1]
    (done,) = m.enqueue_and_wait_until_completed({"question": ["fail"], "worth": [1]}, is_train=True)
    assert done.rollout_state == "failed" and done.error_message == "subprocess exited with code 3", done.error_message
    assert done.final_reward is None and len(done.triplets) == 1

    m = manager(AglAsyncRolloutManager, train_rollout_n=2)
    data = {"question": ["a", "b", "c"], "worth": [0.5, 0.75, 1]}
    done, carried = m.enqueue_and_wait_until_group_completed(data, [], is_train=True, target_finished_group_num=1)
    assert len(done) == 2 and len(carried) == 4
    rest, carried = m.enqueue_and_wait_until_group_completed({}, carried, is_train=True, target_finished_group_num=2)
    assert len(rest) == 4 and not carried
    for d in done + rest:
        check(d, d.input["worth"])
    c.stop()
    return m


def pause_part(m):
    """The trainer's pause and drain, in its words; a call meanwhile waits it out."""
    m.client.post_with_retry("/api/rollouts", json=[{"input": {}, "rollout_id": "paused"}])
    proxy = "/proxy/rollout/paused/attempt/0/mode/train/openai/v1/chat/completions"
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}]}
    paused = m.client.post_with_retry("/proxy/pause", json={"reason": "rollout_done step=1"}, timeout=300.0).json()
    residual = int(paused.get("inflight", 0))
    while residual > 0:
        time.sleep(0.1)
        residual = int(m.client.get("/proxy/state").json().get("inflight", 0))
    refused = m.client.post(proxy, json=body)
    assert refused.status_code == 429 and refused.headers["x-agl-paused"] == "true" and refused.headers["retry-after"] == "5", refused
    assert m.client.post_with_retry("/proxy/resume").json()["paused"] is False
    assert m.client.post(proxy, json=body).status_code == 200
    events = m.client.get("/api/rollouts/paused/events", params={"format": "triplet", "include_routed_experts": True}).json()
    assert len(events) == 1 and events[0]["data"]["status"] == "ok", events
    m._delete_rollout("paused")
    assert m.delete_model() == {"status": "ok"}
    assert m.client.post(proxy.replace("paused", "gone"), json=body).status_code == 404


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: {{ job_name }}}
spec: {template: {spec: {containers: [{name: agent, image: agent, args: [{{ input.question | yaml_escape }}]}]}}}
"""


async def kubernetes_part():
    """The Kubernetes controller's own functions; a list stands for the cluster's Jobs."""
    from omegaconf import OmegaConf

    from agentlightning.client import AgentLightningAsyncClient
    from agentlightning.controller import k8s_reconciler as k8s
    from agentlightning.schemas import RolloutState

    config = OmegaConf.create({"agl_server": {"url": URL, "agent_url": None, "key": KEY},
                               "k8s_runner": {"namespace": "default", "ttl_after_finished": 60, "max_jobs_per_minute": 100, "poll_interval": 1}})
    jobs = []

    class Job:
        def __init__(self, raw, api=None):
            self.raw = raw

        async def async_create(self):
            jobs.append(self)

        @staticmethod
        async def async_list(**_):
            for j in jobs:
                yield j

    k8s.k8s_objects.Job = Job
    async with AgentLightningAsyncClient(base_url=URL, key=KEY, timeout=30) as api:
        r = k8s.K8sReconciler(api=api, config=config)
        r._k8s_api = object()  # no cluster is asked

        async def status(i):
            return (await api.get(f"/api/rollouts/kube-{i}")).json()["rollout"]["status"]

        specs = [{"input": {"question": f"q{i}"}, "rollout_id": f"kube-{i}", "config": {"timeout_seconds": 30, "k8s": {"job_template": JOB}}} for i in range(4)]
        specs.append({"input": {}, "rollout_id": "kube-4", "config": {"k8s": {"job_template": "kind: Pod"}}})
        (await api.post("/api/rollouts", json=specs)).raise_for_status()
        await r._reconcile_once()  # makes the Jobs
        assert [j.raw["metadata"]["name"] for j in jobs] == [f"agl-rollout-kube-{i}" for i in range(4)]
        env = {e["name"]: e["value"] for e in jobs[0].raw["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert env["AGL_OPENAI_BASE_URL"] == f"{URL}/proxy/rollout/kube-0/attempt/0/mode/train/openai/v1", env
        assert (await status(4))["state"] == "failed" and "Invalid Job spec" in (await status(4))["error_message"]
        await r._reconcile_once()  # sees them run
        for i in range(4):
            s = await status(i)
            assert (s["state"], s["k8s_job_name"], s["last_attempt_id"]) == ("running", f"agl-rollout-kube-{i}", "0"), s
        jobs[0].raw["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
        await r._handle_job_event(jobs[0].raw)  # the watch
        jobs[1].raw["status"] = {"failed": 1, "conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}]}
        jobs[2].raw["status"] = {"succeeded": 1}
        del jobs[3]
        await r._reconcile_once()  # the poll
        assert [(await status(i))["state"] for i in range(4)] == ["succeeded", "failed", "succeeded", "failed"]
        assert (await status(1))["error_message"] == "Job failed: DeadlineExceeded — too long", await status(1)
        assert (await status(3))["error_message"] == "Job disappeared"
        await r._handle_job_event(jobs[0].raw)  # seen again: a 409, which it takes
        assert (await status(0))["state"] == "succeeded"
        left = await r._query_rollouts(state_in=[RolloutState.QUEUING, RolloutState.RUNNING], limit=500)
        assert left == [], left


def cursor_part(after):
    """The completion log has every rollout once; deleted ones keep their place."""
    from agentlightning.client import AgentLightningSyncClient

    with AgentLightningSyncClient(base_url=URL, key=KEY, timeout=30) as c:
        seen, at = [], after
        while True:
            page = c.get("/api/rollouts/terminal", params={"after": at, "limit": 2}).json()
            if page["next_after"] == at:
                break
            seen += [i["rollout_id"] for i in page["items"]]
            at = page["next_after"]
        assert at == page["total_terminal"] == after + 4 + 2 + 6 + 5, (at, page["total_terminal"], after)
        assert sorted(seen) == [f"kube-{i}" for i in range(5)], seen


if __name__ == "__main__":
    after = client_part()
    print("ok: client", flush=True)
    m = rollout_part()
    print("ok: local controller and rollout managers", flush=True)
    pause_part(m)
    print("ok: pause, drain, resume", flush=True)
    asyncio.run(kubernetes_part())
    print("ok: Kubernetes controller", flush=True)
    cursor_part(after)
    print("ok: cursor", flush=True)
