// Asks for a token, where the collector answers only who has one.
import { setToken } from '../api/token';

export function TokenForm() {
  return (
    <form
      class="token"
      onSubmit={(event) => {
        event.preventDefault();
        setToken(String(new FormData(event.currentTarget).get('token') ?? ''));
        location.reload();
      }}
    >
      <label>
        <span>Token with the scope “read”, for this tab only</span>
        <input name="token" type="password" autocomplete="off" required pattern="\s*stc_[0-9A-Za-z_\-]+\s*" title="stc_…, as statcollectord token create prints it" />
      </label>
      <button type="submit" class="main">
        Use it
      </button>
    </form>
  );
}
