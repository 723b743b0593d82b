import { render } from 'preact';
import { App } from './app';
import { setPainter, workerPainter } from './heat/painter';
import { logInByLink, watchForLinks } from './parts/log_in';
import './style.css';

setPainter(workerPainter(() => new Worker(new URL('./heat/worker.ts', import.meta.url), { type: 'module' })));
const place = document.getElementById('app');
watchForLinks();
void logInByLink().then(() => place && render(<App />, place));
