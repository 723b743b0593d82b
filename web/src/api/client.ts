// Asks the collector that served the page.
import { tokenFields } from './token';
import type { Answer, ApiNumber, GetPath, Parameters, Paths } from './types';

/** The collector answered that it cannot. Its message says why and what to do. */
export class QueryError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** There is no answer: the collector is stopped, or the network is down. */
export class Unreachable extends Error {}

type Value = string | number | boolean | readonly (string | number)[] | null | undefined;

/** "/api/v1/diff?run_a=base&run_b=ort"; what is absent or empty is left out, commas in texts stay part of them. */
export function urlOf(path: string, parameters: Record<string, Value>): string {
  const parts: string[] = [];
  for (const [name, value] of Object.entries(parameters)) {
    if (value === undefined || value === null || value === '' || value === false) continue;
    const text = Array.isArray(value) ? value.map((one) => encodeURIComponent(one)).join(',') : encodeURIComponent(String(value));
    if (text !== '') parts.push(`${name}=${text}`);
  }
  return parts.length === 0 ? path : `${path}?${parts.join('&')}`;
}

export async function errorOf(response: Response): Promise<Error> {
  try {
    const body = (await response.json()) as { error: string; code: string };
    return new QueryError(response.status, body.code, body.error);
  } catch {
    return new QueryError(response.status, 'unknown', `the collector answered ${response.status} ${response.statusText}`);
  }
}

export async function ask<P extends GetPath>(path: P, parameters: Parameters<P>, signal?: AbortSignal): Promise<Answer<P>> {
  let response: Response;
  try {
    response = await fetch(urlOf(path, parameters as Record<string, Value>), { headers: tokenFields(), ...(signal && { signal }) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable('no answer from the collector');
  }
  if (!response.ok) throw await errorOf(response);
  try {
    return (await response.json()) as Answer<P>;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable('the answer broke off');
  }
}

type PostPath = { [P in keyof Paths]: Paths[P] extends { post: { requestBody?: unknown } } ? P : never }[keyof Paths];

/** Changes something. The field is one that a page of another origin cannot send. */
export async function tell(path: PostPath, body: Record<string, unknown>): Promise<void> {
  let response: Response;
  try {
    response = await fetch(path, { method: 'POST', headers: { 'Content-Type': 'application/json', 'X-Statcollect-Csrf': '1', ...tokenFields() }, body: JSON.stringify(body) });
  } catch {
    throw new Unreachable('no answer from the collector');
  }
  if (!response.ok) throw await errorOf(response);
}

export function numberOf(value: ApiNumber | null | undefined): number | null {
  if (value === null || value === undefined) return null;
  if (typeof value === 'number') return value;
  return value === 'NaN' ? NaN : value === 'Infinity' ? Infinity : -Infinity;
}

/** The bytes of a hexadecimal string. */
export function bytesOf(hex: string): Uint8Array {
  const bytes = new Uint8Array(hex.length >> 1);
  const digit = (code: number) => (code < 58 ? code - 48 : code - 87);
  for (let i = 0; i < bytes.length; ++i) bytes[i] = (digit(hex.charCodeAt(2 * i)) << 4) | digit(hex.charCodeAt(2 * i + 1));
  return bytes;
}
