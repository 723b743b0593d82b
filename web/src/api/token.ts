// The token of a collector that asks for one: kept by the browser for this tab, until it is closed.
const KEY = 'statcollect.token';

export function setToken(token: string): void {
  sessionStorage.setItem(KEY, token.trim());
}

/** The fields of a request that carry it; none without one. A report opened from a file has no storage and asks nobody. */
export function tokenFields(): Record<string, string> {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}
