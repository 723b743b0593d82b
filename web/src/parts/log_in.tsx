// Logging in and out, where the collector answers only those who have a token.
import { useEffect } from 'preact/hooks';
import { forget, hasLink, isLoggedIn, linkOf, onSessionChange, setSession, setToken, tokenFields } from '../api/token';

let problem = ''; // with the link of this visit

async function post(path: string, body: object): Promise<Response> {
  return fetch(path, { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json', ...tokenFields() } });
}

/** Uses up the link that statctl open has printed, if this is its address; takes it out of the address and the history first. */
export async function logInByLink(): Promise<void> {
  const link = linkOf();
  if (!link) return;
  history.replaceState(null, '', location.pathname + location.search);
  try {
    const answer = await post('/session/login', { link });
    const body = (await answer.json()) as { page?: string; error?: string };
    if (answer.ok && body.page) setSession(body.page);
    else if (!isLoggedIn()) problem = body.error ?? `the collector answered ${answer.status}`;
  } catch {
    problem = 'the collector does not answer';
  }
}

/** A link that is opened in a tab that shows the page already would load nothing. */
export function watchForLinks(): void {
  window.addEventListener('hashchange', () => {
    if (hasLink()) location.reload();
  });
}

/** In the place of a view. `message`: why the collector refused. */
export function LogIn({ message }: { message: string }) {
  useEffect(() => onSessionChange(() => location.reload()), []);
  const tried = problem || (isLoggedIn() ? message : '');
  return (
    <div class="state log-in" role="alert">
      <h1>Log in</h1>
      {tried ? <p class="offline">{tried}</p> : null}
      <p>
        This collector requires a token. Run <code>statctl open</code> where <code>statctl</code> has one: it prints a link that logs this browser in.
      </p>
      <form
        class="token"
        onSubmit={(event) => {
          event.preventDefault();
          setToken(String(new FormData(event.currentTarget).get('token') ?? ''));
          location.reload();
        }}
      >
        <label>
          <span>Or paste a token with the scope “read”. It is kept for this tab only.</span>
          <input name="token" type="password" autocomplete="off" required pattern="\s*stc_[0-9A-Za-z_\-]+\s*" title="stc_…, as statcollectord token create prints it" />
        </label>
        <button type="submit" class="main">
          Log in
        </button>
      </form>
    </div>
  );
}

/** Only for who is logged in. */
export function LogOut() {
  useEffect(() => onSessionChange(() => location.reload()), []);
  if (!isLoggedIn()) return null;
  const leave = async () => {
    await post('/session/logout', {}).catch(() => undefined);
    forget();
    location.reload();
  };
  return (
    <button type="button" class="quiet log-out" onClick={() => void leave()}>
      Log out
    </button>
  );
}
