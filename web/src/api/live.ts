// What changes in the runs while it changes: server-sent events of the collector, read with fetch, because an EventSource cannot
// carry a token. Without them (too many readers, an old collector, a proxy that holds answers back) the runs are asked for now and then.
import { useEffect, useState } from 'preact/hooks';
import { ask, errorOf, QueryError, Unreachable, urlOf } from './client';
import { tokenFields } from './token';
import type { LiveMessage, RunSummary } from './types';
import { report, type Query } from './use_query';

export interface LiveRuns {
  runs: readonly RunSummary[];
  events: ReadonlyMap<string, number>; // how many each run has got; only that it changes means something
}

const SILENCE_MS = 25_000; // the collector says something every 10 s
const POLL_MS = 3000;
const POLLS_A_TRY = 20; // then events are tried again
const HIDDEN_MS = 10_000; // a hidden page gives its connection back: a browser has six for a collector
const BACK_OFF_MS = [500, 1000, 2000, 3000, 5000];

/** The events of a stream, however it is cut into pieces. */
export class EventParser {
  private text = '';

  /** The data of the events that are complete now. */
  push(piece: string): string[] {
    this.text += piece;
    const found: string[] = [];
    for (;;) {
      const end = this.text.indexOf('\n\n');
      if (end < 0) return found;
      const lines = this.text.slice(0, end).split('\n');
      this.text = this.text.slice(end + 2);
      const data = lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(5).replace(/^ /, ''));
      if (data.length > 0) found.push(data.join('\n'));
    }
  }
}

/** The runs as the messages leave them. */
export class RunsBoard {
  cursor = '';
  private runs = new Map<string, RunSummary>();
  private events = new Map<string, number>();
  private shownRuns: Map<string, RunSummary> | null = null;

  /** The runs to show now; null: more is on its way, so what was shown stays. */
  take(message: LiveMessage): LiveRuns | null {
    if (message.whole) {
      this.runs = new Map();
      this.events = new Map();
    }
    for (const change of message.runs) {
      if (!change.run) continue;
      this.runs.set(change.run.run, change.run);
      this.events.set(change.run.run, change.events);
    }
    for (const run of message.removed) {
      this.runs.delete(run);
      this.events.delete(run);
    }
    if (message.cursor) this.cursor = message.cursor;
    if (!message.caught_up) return null;
    this.shownRuns = this.runs;
    return { runs: [...this.shownRuns.values()], events: new Map(this.events) };
  }
}

const sleep = (ms: number, stop: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(end, ms);
    function end() {
      clearTimeout(timer);
      stop.removeEventListener('abort', end);
      done();
    }
    stop.addEventListener('abort', end);
  });

const seen = (stop: AbortSignal) =>
  new Promise<void>((done) => {
    function look() {
      if (document.hidden && !stop.aborted) return;
      document.removeEventListener('visibilitychange', look);
      stop.removeEventListener('abort', look);
      done();
    }
    document.addEventListener('visibilitychange', look);
    stop.addEventListener('abort', look);
    look();
  });

interface Listener {
  onRuns(runs: LiveRuns): void;
  onError(error: QueryError): void;
  onOffline(): void;
}

/** One connection, until it ends. Throws what ended it. */
async function listen(runs: readonly string[], board: RunsBoard, listener: Listener, stop: AbortSignal): Promise<void> {
  const connection = new AbortController();
  const end = () => connection.abort();
  stop.addEventListener('abort', end);
  let silence: ReturnType<typeof setTimeout> | undefined;
  let hidden: ReturnType<typeof setTimeout> | undefined;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(end, SILENCE_MS);
  };
  const hide = () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(end, HIDDEN_MS);
  };
  document.addEventListener('visibilitychange', hide);
  hide();
  heard();
  try {
    const answer = await fetch(urlOf('/api/v1/live', { runs, cursor: board.cursor }), { headers: { Accept: 'text/event-stream', ...tokenFields() }, signal: connection.signal });
    if (!answer.ok) throw await errorOf(answer);
    report(false);
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      for (const data of parser.push(value)) {
        const shown = board.take(JSON.parse(data) as LiveMessage);
        if (shown) listener.onRuns(shown);
      }
    }
  } catch (error) {
    if (error instanceof QueryError) throw error;
    throw new Unreachable('the events broke off');
  } finally {
    clearTimeout(silence);
    clearTimeout(hidden);
    document.removeEventListener('visibilitychange', hide);
    stop.removeEventListener('abort', end);
    connection.abort();
  }
}

/** The fallback: some looks at the list. */
async function poll(runs: readonly string[], listener: Listener, stop: AbortSignal): Promise<void> {
  for (let i = 0; i < POLLS_A_TRY && !stop.aborted; ++i) {
    await seen(stop);
    const answer = await ask('/api/v1/runs', {}, stop);
    report(false);
    const wanted = runs.length === 0 ? answer.runs : answer.runs.filter((run) => runs.includes(run.run));
    listener.onRuns({ runs: wanted, events: new Map(wanted.map((run) => [run.run, run.records])) });
    await sleep(POLL_MS, stop);
  }
}

async function follow(runs: readonly string[], listener: Listener, stop: AbortSignal): Promise<void> {
  const board = new RunsBoard();
  for (let failures = 0; !stop.aborted; ) {
    await seen(stop);
    const began = Date.now();
    try {
      try {
        await listen(runs, board, listener, stop);
      } catch (error) {
        const permanent = error instanceof QueryError && error.status !== 503 && error.status !== 401 && error.status !== 403;
        if (!permanent) throw error;
        await poll(runs, listener, stop);
      }
    } catch (error) {
      if (stop.aborted) return;
      if (error instanceof QueryError) listener.onError(error);
      else if (Date.now() - began < SILENCE_MS && !document.hidden && board.cursor === '') listener.onOffline();
      else if (!document.hidden) {
        // It was there a moment ago: say that it is gone only if it is.
        await fetch('/healthz', { signal: stop }).then(
          (answer) => report(!answer.ok),
          () => stop.aborted || listener.onOffline(),
        );
      }
      ++failures;
    }
    if (Date.now() - began > 10_000) failures = 0;
    const wait = BACK_OFF_MS[Math.min(failures, BACK_OFF_MS.length - 1)]!;
    await sleep(wait * (0.8 + 0.4 * Math.random()), stop);
  }
}

/** The runs with these names (none: all), as they change; null: nobody asks. */
export function useLive(names: readonly string[] | null): Query<LiveRuns> {
  const key = names === null ? null : JSON.stringify(names);
  const nothing = { data: null, error: null, offline: false, loading: key !== null, milliseconds: 0 };
  const [state, setState] = useState<Query<LiveRuns> & { key: string | null }>({ key, ...nothing });
  useEffect(() => {
    setState({ key, ...nothing });
    if (key === null) return;
    const stop = new AbortController();
    const listener: Listener = {
      onRuns: (data) => setState({ key, ...nothing, loading: false, data }),
      onError: (error) => setState((old) => ({ key, ...nothing, loading: false, data: error.status === 503 && old.key === key ? old.data : null, error: error.status === 503 ? null : error })),
      onOffline: () => {
        report(true);
        setState((old) => ({ key, ...nothing, loading: false, offline: true, data: old.key === key ? old.data : null }));
      },
    };
    void follow(JSON.parse(key) as string[], listener, stop.signal);
    return () => stop.abort();
  }, [key]);
  return state.key === key ? state : nothing;
}
