import { render } from 'preact';
import { App } from './app';
import { setPainter, workerPainter } from './heat/painter';
import './style.css';

setPainter(workerPainter(() => new Worker(new URL('./heat/worker.ts', import.meta.url), { type: 'module' })));
const place = document.getElementById('app');
if (place) render(<App />, place);
