// What the first view asks, asked before the page is drawn: the collector answers while the browser is still busy with the page.
import { ask } from './client';
import type { Answer, GetPath, Parameters } from './types';

interface Early {
  answer: Promise<unknown>;
  stop: AbortController;
}
const early = new Map<string, Early>();

const keyOf = (path: string, parameters: unknown) => JSON.stringify([path, parameters]);

export function askEarly<P extends GetPath>(path: P, parameters: Parameters<P>): void {
  const stop = new AbortController();
  const answer = ask(path, parameters, stop.signal);
  answer.catch(() => undefined); // who takes it sees why
  early.set(keyOf(path, parameters), { answer, stop });
}

/** The answer to this question, if it was asked early; once, so that whoever asks again gets a new one. */
export function takeEarly<P extends GetPath>(path: P, parameters: Parameters<P>, signal: AbortSignal): Promise<Answer<P>> | undefined {
  const key = keyOf(path, parameters);
  const found = early.get(key);
  if (!found) return undefined;
  early.delete(key);
  signal.addEventListener('abort', () => found.stop.abort());
  return found.answer as Promise<Answer<P>>;
}
