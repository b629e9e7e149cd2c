"""The page of torch.distributed.debug's server."""

from __future__ import annotations

import pickle
import signal
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pytest

import kprof
from kprof.errors import RecorderError

HANDLERS = "torch.distributed.debug._debug_handlers"


def torch_has_the_server() -> bool:
    try:
        import torch.distributed.debug._frontend  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.skipif(not torch_has_the_server(), reason="torch has no debug server: 2.13 has")
def test_the_page_says_what_ranks_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.debug._frontend import BASE_TEMPLATE

    theirs = SimpleNamespace(default_handlers=lambda: ["theirs"])
    monkeypatch.setitem(sys.modules, HANDLERS, theirs)
    assert kprof.torch_debug_handlers(kprof.recorder()) == ["theirs"]
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        recorder.launch("a<b")
        _, made = kprof.torch_debug_handlers(recorder)
        # The server is started with what it was given, pickled.
        page = pickle.loads(pickle.dumps(made))

        def render(name: str, **values: str) -> bytes:
            templates = {"base.html": BASE_TEMPLATE, **page.templates()}
            environment = jinja2.Environment(loader=jinja2.DictLoader(templates))
            environment.globals["nav_links"] = ""
            return environment.get_template(name).render(**values).encode()

        (route,) = page.routes()
        answer = route.handler(SimpleNamespace(frontend=SimpleNamespace(render_template=render)))
    signal.set_wakeup_fd(-1)
    assert [link.path for link in page.nav_links()] == [route.path] == ["/kprof"]
    text = answer.decode()
    assert "<pre>no kernel says that it waits: all ranks have made 1 call of the recorder" in text
    assert "  rank 0: running, 1 launch, Python at " in text
    assert page.dump() == "the recording has ended"


@pytest.mark.skipif(not torch_has_the_server(), reason="torch has no debug server: 2.13 has")
def test_torchs_own_server_serves_the_page(tmp_path: Path) -> None:
    pytest.importorskip("tabulate", reason="torch's debug server needs it")
    from torch.distributed.debug._frontend import FrontendServer

    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        recorder.launch("combine")
        handlers = kprof.torch_debug_handlers(recorder)
        assert len(handlers) > 1
        server = FrontendServer(port=0, handlers=handlers)
        place = f"http://localhost:{server._server.server_port}/kprof"
        with urllib.request.urlopen(place) as answer:
            text = answer.read().decode()
        server._server.shutdown()
        server.join()
        server._server.server_close()
    signal.set_wakeup_fd(-1)
    assert "no kernel says that it waits: all ranks have made 1 call of the recorder" in text
    assert 'href="/kprof"' in text


def test_a_torch_without_the_server_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HANDLERS, None)
    with pytest.raises(RecorderError, match=r"cannot be used here \(.*\); kprof hang RUN prints"):
        kprof.torch_debug_handlers(kprof.recorder())
