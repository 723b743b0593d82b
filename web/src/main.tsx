import { render } from 'preact';
import { hasLink } from './api/token';
import { App } from './app';
import { askFirst } from './early';
import { setPainter, workerPainter } from './heat/painter';
import { logInByLink, watchForLinks } from './parts/log_in';
import './style.css';

setPainter(workerPainter(() => new Worker(new URL('./heat/worker.ts', import.meta.url), { type: 'module' })));
const place = document.getElementById('app');
const draw = () => place && render(<App />, place);
watchForLinks();

if (hasLink()) {
  void logInByLink().then(() => {
    askFirst();
    draw();
  });
} else draw();
