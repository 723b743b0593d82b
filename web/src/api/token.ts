// What the page shows a collector that wants to know who asks: the session of a browser that is logged in, or a token.
//
// The session is a cookie, which scripts cannot read, and a second secret, which is kept here. A token is kept for the tab.
const TOKEN = 'statcollect.token';
const SESSION = 'statcollect.session';

const LINK = /^#login=(\w+)$/;

/** The link that logs in, as statctl open prints it, if the address ends with one. */
export function linkOf(): string | undefined {
  return LINK.exec(location.hash)?.[1];
}

export const hasLink = (): boolean => linkOf() !== undefined;

export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN, token.trim());
}

export function setSession(secret: string): void {
  sessionStorage.removeItem(TOKEN);
  localStorage.setItem(SESSION, secret);
}

export function isLoggedIn(): boolean {
  return sessionStorage.getItem(TOKEN) !== null || localStorage.getItem(SESSION) !== null;
}

export function forget(): void {
  sessionStorage.removeItem(TOKEN);
  localStorage.removeItem(SESSION);
}

/** Calls when another tab has logged in or out. */
export function onSessionChange(changed: () => void): () => void {
  const listener = (event: StorageEvent) => {
    if (event.storageArea === localStorage && event.key === SESSION) changed();
  };
  window.addEventListener('storage', listener);
  return () => window.removeEventListener('storage', listener);
}

/** The fields of a request that carry it; none without one. A report opened from a file has no storage and asks nobody. */
export function tokenFields(): Record<string, string> {
  const token = sessionStorage.getItem(TOKEN);
  if (token) return { Authorization: `Bearer ${token}` };
  const session = localStorage.getItem(SESSION);
  return session ? { 'X-Statcollect-Session': session } : {};
}
