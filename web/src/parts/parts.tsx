// Small parts that every view uses.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { QueryError } from '../api/client';
import { follow, hrefOf, type Route } from '../route';
import { quoted, sentenceOf, shown } from '../text';
import { LogIn } from './log_in';

export function Link({ to, children, current = false, title }: { to: Partial<Route>; children: ComponentChildren; current?: boolean; title?: string }) {
  return (
    <a href={hrefOf(to)} onClick={(event) => follow(event, to)} {...(current ? { 'aria-current': 'page' as const } : {})} {...(title ? { title } : {})}>
      {children}
    </a>
  );
}

/** The name of a run or tensor, isolated: whatever it contains, the text around it keeps its order. */
export function Name({ name, longest = 80 }: { name: string; longest?: number }) {
  return (
    <bdi class="name" title={shown(name, 2000)}>
      {shown(name, longest)}
    </bdi>
  );
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers refuse this over plain HTTP from another machine; the old way works.
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand('copy');
    area.remove();
    return copied;
  }
}

type Act = () => string | void | Promise<string | void>; // what to say of it when it is done

/** A button that opens a short list of things to do. */
export function Menu({ label, items }: { label: string; items: readonly (readonly [text: string, act: Act])[] }) {
  const box = useRef<HTMLDetailsElement>(null);
  const [done, setDone] = useState('');
  useEffect(() => {
    if (done === '') return;
    const timer = window.setTimeout(() => setDone(''), 2000);
    return () => window.clearTimeout(timer);
  }, [done]);
  useEffect(() => {
    const close = (event: Event) => {
      if (event instanceof KeyboardEvent ? event.key !== 'Escape' : box.current?.contains(event.target as Node)) return;
      if (event instanceof KeyboardEvent && box.current?.contains(document.activeElement)) box.current.querySelector('summary')?.focus();
      box.current?.removeAttribute('open');
    };
    document.addEventListener('pointerdown', close);
    document.addEventListener('keydown', close);
    return () => {
      document.removeEventListener('pointerdown', close);
      document.removeEventListener('keydown', close);
    };
  }, []);
  const choose = async (act: Act) => {
    box.current?.removeAttribute('open');
    box.current?.querySelector('summary')?.focus();
    setDone((await act()) ?? '');
  };
  return (
    <details class="menu" ref={box}>
      <summary>
        <span aria-live="polite">{done || label}</span>
      </summary>
      <div class="menu-items">
        {items.map(([text, act]) => (
          <button key={text} type="button" onClick={() => void choose(act)}>
            {text}
          </button>
        ))}
      </div>
    </details>
  );
}

/** An item of a menu that copies a text. */
export const copying = (label: string, text: string) => [label, async () => ((await copy(text)) ? 'Copied' : 'Not copied')] as const;

export interface Asked {
  statctl: string;
  url: string;
  what?: string; // of several
}

/** What asks the same in a terminal. */
export const copiesOf = ({ statctl, url, what = '' }: Asked) => [copying(`${what}statctl command`, statctl), copying(`${what}curl command`, `curl ${quoted(location.origin + url)}`)];

/** The same queries for a terminal, and one menu that copies them. `copies`: without it, another place has the menu. */
export function Commands({ asked, copies = true }: { asked: readonly Asked[]; copies?: boolean }) {
  return (
    <div class="commands">
      <div class="grow">
        {asked.map(({ statctl }) => (
          <code key={statctl} tabIndex={0} aria-label="The same in a terminal">
            {statctl}
          </code>
        ))}
      </div>
      {copies ? <Menu label="Copy" items={asked.flatMap(copiesOf)} /> : null}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div class="state" role="status">
      <div class="pulse" aria-hidden="true" />
      <p>{what}…</p>
    </div>
  );
}

export function Refused({ error }: { error: QueryError }) {
  if (error.status === 401) return <LogIn message={shown(error.message, 2000)} />;
  return (
    <div class="state" role="alert">
      <h1>The collector cannot answer this</h1>
      <p>{sentenceOf(shown(error.message, 2000))}</p>
    </div>
  );
}

export function Away() {
  return (
    <div class="state" role="status">
      <h1>The collector does not answer</h1>
      <p>It is stopped, or this machine cannot reach it. The page keeps trying.</p>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="state">
      <h1>{title}</h1>
      {children}
    </div>
  );
}

/** A run that the collector does not have (any more). */
export function NoRun({ run, removed }: { run: string; removed: boolean }) {
  return (
    <Empty title={removed ? 'This run was removed' : 'There is no such run'}>
      <p>
        <bdi class="name">{shown(run, 200)}</bdi> is not in the <Link to={{ view: 'runs' }}>list of runs</Link>. If it starts, it appears here.
      </p>
    </Empty>
  );
}

/** What to show while a query has no data; null if it has. */
export function waiting(query: { data: unknown; error: QueryError | null; offline: boolean }, what: string) {
  if (query.data !== null) return null;
  if (query.error) return <Refused error={query.error} />;
  return query.offline ? <Away /> : <Loading what={what} />;
}

export function Choice({ label, value, options, onChange }: { label: string; value: string; options: readonly (readonly [string, string])[]; onChange: (value: string) => void }) {
  return (
    <label class="choice">
      <span>{label}</span>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map(([one, text]) => (
          <option key={one} value={one}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}
