// The head of a run's views: its name, its state, and the tabs between them; of two runs, those of their comparison.
import type { ComponentChildren } from 'preact';
import type { Route, View } from '../route';
import { Link } from './parts';
import { RunPair } from './run_pair';

const OF_ONE: readonly (readonly [View, string])[] = [
  ['run', 'Statistics'],
  ['config', 'Configuration'],
  ['ranks', 'Ranks'],
  ['memory', 'Memory'],
];
const OF_TWO: readonly (readonly [View, string])[] = [
  ['compare', 'Verdict'],
  ['tokens', 'Tokens'],
  ['config', 'Configuration'],
];

interface Props {
  route: Route;
  state?: string; // of the run
  children?: ComponentChildren; // on the right
}

export function RunHead({ route, state = '', children }: Props) {
  const { a, b, view } = route;
  const tabs = b === '' ? OF_ONE : OF_TWO;
  return (
    <>
      <header class="pair">
        <h1>
          <RunPair a={a} b={b} />
        </h1>
        {state === 'running' ? <span class="live">live</span> : state === '' ? null : <span class="soft">{state}</span>}
        <span class="grow" />
        {children}
      </header>
      <nav class="tabs" aria-label={b === '' ? 'Of this run' : 'Of this comparison'}>
        {tabs.map(([to, text]) => (
          <Link key={to} to={to === view ? route : { view: to, a, b }} current={to === view}>
            {text}
          </Link>
        ))}
      </nav>
    </>
  );
}
