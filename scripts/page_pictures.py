#!/usr/bin/env python3
"""Records real trainings and takes the pictures of the page for the documentation; or of every view, to look at.

scripts/page_pictures.py                         # docs/pictures/page-*.png again; about three minutes
scripts/page_pictures.py --record FOLDER         # only the trainings, into FOLDER/data, for --data
scripts/page_pictures.py --data FOLDER/data --all OUT [--only runs,compare]   # every view in light and dark, at 1280 and 390 pixels
scripts/page_pictures.py --data FOLDER/data --all OUT --bundle web/dist       # with this bundle instead of the collector's own

Needs statcollectord and the agent (scripts/build.sh), PyTorch, Chromium and Python's playwright (scripts/setup.sh --for test), and Pillow for small files.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from browser import CHROMIUM, MISSING, launch

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release"))
TRAIN = str(ROOT / "examples" / "gpt_torch" / "train.py")
SECONDS_MAX = 300

# A warm-up of the learning rate that never ends: the training learns something, becomes unstable, and overflows.
DIVERGES = """
import statagent, torch
from torch import nn
torch.manual_seed(5)
layers = [layer for _ in range(2) for layer in (nn.Linear(32, 32), nn.ReLU())]
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *layers, nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.004, momentum=0.9)
statagent.init(run="endless-warmup", config={"lr": 0.004, "warmup": 1.15})
statagent.watch(model, optimizer=optimizer)
for step in range(52):
    for group in optimizer.param_groups:
        group["lr"] = 0.004 * 1.15**step
    x = torch.randn(128, 16)
    loss = (model(x) - x[:, :4].sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    statagent.log_scalar("loss", loss)
    optimizer.step()
    optimizer.zero_grad()
statagent.close()
"""

# A tagger on sentences of different lengths: padding, and memory by module.
TAGGER = """
import statagent, torch
from torch import nn
torch.manual_seed(1)
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4000, 512, padding_idx=0)
        self.encoder = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.head = nn.Linear(512, 4000)
    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))
model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
statagent.init(run="tagger")
statagent.watch(model, optimizer=optimizer, memory="modules", density={"input_ids": 0})
for step in range(24):
    ids = torch.randint(1, 4000, (16, 64))
    for row, length in zip(ids, torch.randint(12, 65, (16,))):
        row[length:] = 0
    statagent.log_batch(input_ids=ids)
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten(), ignore_index=0)
    statagent.log_scalar("loss", loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
statagent.close()
"""


@dataclass
class Training:
    run: str
    arguments: tuple[str, ...] = ()
    ranks: int = 2
    script: str = ""  # instead of the example
    environment: dict[str, str] = field(default_factory=dict)


VALUES = {"STATAGENT_EXPONENTS": "blocks.1.ln2@0-", "STATAGENT_CAPTURES": "blocks.1.ln2@4"}
LONG = ("--steps", "400", "--layers", "6", "--width", "48", "--context", "32", "--batch", "4")
TRAININGS = (
    Training("gpt-6l", LONG, ranks=1),
    Training("gpt-6l-lr", (*LONG, "--bug", "lr", "--bug-step", "180"), ranks=1),
    Training("endless-warmup", script=DIVERGES, ranks=1),
    Training("tagger", script=TAGGER, ranks=1),
    Training("ddp", ("--steps", "30")),
    Training("ddp-unsynced", ("--steps", "30", "--bug", "grad_sync", "--bug-step", "6")),
    Training("base", ("--steps", "30"), environment=VALUES),
    Training("ort", ("--steps", "30", "--bug", "ln_eps", "--bug-step", "3"), environment=VALUES),
    Training("base2", ("--steps", "30"), environment=VALUES),
)


@contextmanager
def collector(data: Path) -> Iterator[tuple[str, str]]:
    """A collector of this folder: its addresses for agents and for browsers."""
    command = [
        str(BUILD / "bin" / "statcollectord"),
        "--data-dir",
        str(data),
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            assert running.stdout
            ready = running.stdout.readline()
            grpc, http = re.search(r"grpc (\S+:\d+)", ready), re.search(r"http (\S+:\d+)", ready)
            if grpc is None or http is None:
                sys.exit(f"page_pictures.py: start {command[0]}: expected a line with its addresses, found '{ready.strip()}'")
            yield grpc[1], http[1]
        finally:
            running.terminate()


def train(training: Training, address: str) -> None:
    print("recording", training.run, file=sys.stderr, flush=True)
    environment = {
        **os.environ,
        "STATAGENT_COLLECTOR": address,
        "STATAGENT_RUN": training.run,
        "STATAGENT_LIBRARY": str(BUILD / "lib" / "libstatagent.so"),
        "PYTHONPATH": str(ROOT / "agent" / "python"),
        "OMP_NUM_THREADS": "1",
        **training.environment,
    }
    launch = [sys.executable]
    if training.ranks > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={training.ranks}"]
    done = subprocess.run(
        [*launch, *(["-c", training.script] if training.script else [TRAIN, *training.arguments])],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"page_pictures.py: record {training.run}: exit code {done.returncode}\n{done.stdout[-2000:]}")


def record(data: Path) -> None:
    with collector(data) as (address, _):
        for training in TRAININGS:
            train(training, address)


COMPARE = "/?view=compare&a=base&b=ort"
CELL = COMPARE + "&tensor=blocks.1.ln2&kind=output&path=0&mode=train&step=3"
TENSOR = "/?view=tensor&a=base&b=ort&tensor=blocks.1.ln2&kind=output&path=0&mode=train"
MAP = "canvas[data-painted]"
Act = Callable[[Any], None]


def ask_removal(page: Any) -> None:
    for run in ("ddp-unsynced", "endless-warmup"):
        page.get_by_role("checkbox", name=f"Pick {run}", exact=True).check()
    page.get_by_role("button", name="Remove…").click()
    page.wait_for_selector("dialog[open]")


def pick_two(page: Any) -> None:
    for run in ("base", "ort"):
        page.get_by_role("checkbox", name=f"Pick {run}", exact=True).check()


def refuse(page: Any) -> None:
    """What the page shows without a token, from a collector that wants one."""
    answer = {"error": "the collector needs a token; found none", "code": "unauthenticated"}
    page.route("**/api/v1/**", lambda route: route.fulfill(status=401, json=answer))
    page.reload()


def hide_paths(page: Any) -> None:
    """Leaves the folders of this machine out of the picture."""
    page.evaluate(
        r"""root => { const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
        for (let node = walker.nextNode(); node; node = walker.nextNode())
          node.data = node.data.replaceAll(root + '/', '').replace(/^\/\S+\/data$/, '/var/lib/statcollect'); }""",
        str(ROOT),
    )


def cut_off(page: Any) -> None:
    page.route("**/api/v1/**", lambda route: route.abort())
    page.route("**/healthz", lambda route: route.abort())
    page.get_by_role("link", name="Collector").click()


@dataclass
class View:
    path: str
    wait: str = "main h1, main h2"
    act: Act | None = None
    after: str = ""  # appears after the act
    picture: str = ""  # in docs/pictures, light at 1280 pixels
    height: int = 0  # of that picture; 0: the whole page


VIEWS = {
    "runs": View("/", "table.rows tbody tr", pick_two, picture="page-runs"),
    "removal": View("/", "table.rows tbody tr", ask_removal, picture="page-removal", height=720),
    "compare": View(COMPARE, MAP, picture="page-compare", height=1560),
    "cell": View(CELL, ".cell .chart canvas", picture="page-cell"),
    "identical": View("/?view=compare&a=base&b=base2", MAP),
    "long": View("/?view=compare&a=gpt-6l&b=gpt-6l-lr", MAP),
    "unsynced": View("/?view=compare&a=ddp&b=ddp-unsynced", MAP),
    "options": View(COMPARE + "&tolerance=0.5&steps=0-9&kinds=output,weight&noise=base2", MAP),
    "run": View("/?view=run&a=endless-warmup", MAP, picture="page-run"),
    "run-long": View("/?view=run&a=gpt-6l-lr&stat=update_ratio", MAP),
    "tensor": View(TENSOR, ".grid .chart canvas", picture="page-tensor", height=900),
    "tensor-long": View(
        "/?view=tensor&a=gpt-6l&b=gpt-6l-lr&tensor=blocks.3.ln2&kind=output&path=0&mode=train", ".grid .chart canvas"
    ),
    "values": View(TENSOR + "&stat=exponents,captures", "text=elements differ", picture="page-values"),
    "memory": View("/?view=memory&a=tagger", "section[aria-label=Padding] .chart canvas", picture="page-memory"),
    "config": View("/?view=config&a=base&b=ort", "table.rows tbody tr", hide_paths, picture="page-config"),
    "ranks": View("/?view=ranks&a=ddp-unsynced", "table.rows tbody tr", picture="page-ranks"),
    "collector": View("/?view=collector", ".facts", hide_paths, picture="page-collector"),
    "empty": View("/?view=compare"),
    "unknown": View("/?view=compare&a=base&b=nobody", "[role=alert]"),
    "incomparable": View("/?view=compare&a=base&b=tagger", ".badge"),
    "login": View("/", "main", refuse, "form.token"),
    "offline": View("/", "table.rows tbody tr", cut_off, ".offline"),
}
EXTRA = {"page-compare-dark": ("compare", "dark", 1280, 1560), "page-phone": ("cell", "light", 390, 1500)}
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


def serve_bundle(page: Any, bundle: Path) -> None:
    """Answers for the collector with the files of this bundle."""

    def answer(route: Any) -> None:
        path = re.sub(r"^https?://[^/]+", "", route.request.url).split("?")[0]
        file = bundle / "page" / (path.lstrip("/") or "index.html")
        route.fulfill(path=str(file), content_type=TYPES[file.suffix])

    page.route(re.compile(r"^http://[^/]+/(\?.*)?$"), answer)
    page.route("**/assets/*", answer)


def take(
    browser: Any, http: str, view: View, theme: str, width: int, file: Path, height: int = 0, bundle: Path | None = None
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height or 900}, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(20_000)
    if bundle:
        serve_bundle(page, bundle)
    page.goto(f"http://{http}{view.path}")
    page.wait_for_selector(view.wait, state="attached")
    if view.act:
        view.act(page)
    if view.after:
        page.wait_for_selector(view.after)
    page.wait_for_timeout(600)
    page.screenshot(path=str(file), full_page=height == 0)
    context.close()


def report_file(browser: Any, data_http: str, grpc: str, out: Path) -> None:
    file = out / "report.html"
    file.unlink(missing_ok=True)
    subprocess.run(
        [str(BUILD / "bin" / "statctl"), "--collector", grpc, "report", "base", "ort", "--out", str(file)],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    for theme in ("light", "dark"):
        for width in (1280, 390):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, offline=True)
            page = context.new_page()
            page.goto(file.as_uri())
            page.wait_for_selector(MAP, state="attached")
            page.get_by_role("button", name="Show the origin").click()
            page.wait_for_timeout(300)
            page.screenshot(path=str(out / f"report-{theme}-{width}.png"), full_page=True)
            context.close()


def shrink(file: Path) -> None:
    """Fewer colours: a third of the bytes, and nothing that an eye would miss. Without Pillow the file stays as it is."""
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError:
        print("page_pictures.py: found no Pillow; pictures are three times as large (pip install pillow)", file=sys.stderr)
        return
    with image.open(file) as picture:
        picture.convert("RGB").quantize(255, dither=image.Dither.NONE).save(file, optimize=True)


def look(browser: Any, http: str, grpc: str, out: Path, only: set[str], bundle: Path | None) -> None:
    for name, view in VIEWS.items():
        if only and name not in only:
            continue
        for theme in ("light", "dark"):
            for width in (1280, 390):
                take(browser, http, view, theme, width, out / f"{name}-{theme}-{width}.png", bundle=bundle)
    if not only or "report" in only:
        report_file(browser, http, grpc, out)


def document(browser: Any, http: str, bundle: Path | None) -> None:
    folder = ROOT / "docs" / "pictures"
    jobs = [(view.picture, name, "light", 1280, view.height) for name, view in VIEWS.items() if view.picture]
    jobs += [(picture, *rest) for picture, rest in EXTRA.items()]
    for picture, name, theme, width, height in jobs:
        file = folder / f"{picture}.png"
        take(browser, http, VIEWS[name], theme, width, file, height, bundle)
        shrink(file)
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1024} KiB", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="record the trainings into FOLDER/data and stop")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="the data of recorded trainings, instead of new ones")
    parser.add_argument(
        "--all", type=Path, metavar="OUT", help="every view, in light and dark, wide and narrow, into this folder"
    )
    parser.add_argument(
        "--only", default="", help="with --all: these views, separated by commas: " + ", ".join([*VIEWS, "report"])
    )
    parser.add_argument("--bundle", type=Path, help="a folder that scripts/web.sh build has written")
    asked = parser.parse_args()
    only = set(filter(None, asked.only.split(",")))
    if unknown := only - {*VIEWS, "report"}:
        parser.error(f"--only: found {', '.join(sorted(unknown))}; expected some of {', '.join([*VIEWS, 'report'])}")
    if asked.record:
        asked.record.mkdir(parents=True, exist_ok=True)
        return record(asked.record / "data")
    if not CHROMIUM:
        parser.error(MISSING)
    with tempfile.TemporaryDirectory() as temporary:
        data = asked.data or Path(temporary) / "data"
        if not asked.data:
            record(data)
        with (
            collector(data) as (grpc, http),
            importlib.import_module("playwright.sync_api").sync_playwright() as running,
        ):
            browser = launch(running)
            if asked.all:
                asked.all.mkdir(parents=True, exist_ok=True)
                look(browser, http, grpc, asked.all, only, asked.bundle)
            else:
                document(browser, http, asked.bundle)
            browser.close()
    return None


if __name__ == "__main__":
    main()
