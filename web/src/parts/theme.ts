// Dark or light, as the system says.
import { useEffect, useLayoutEffect, useState } from 'preact/hooks';

export type Theme = 'light' | 'dark';
const dark = matchMedia('(prefers-color-scheme: dark)');

export function useTheme(): Theme {
  const [theme, setTheme] = useState<Theme>(dark.matches ? 'dark' : 'light');
  useEffect(() => {
    const changed = () => setTheme(dark.matches ? 'dark' : 'light');
    dark.addEventListener('change', changed);
    return () => dark.removeEventListener('change', changed);
  }, []);
  return theme;
}

/** Lines of charts. Run B is dashed, too, so that colour is never all that tells the two apart. */
export const LINES = {
  light: { a: '#1f6299', b: '#b8541a', d: '#3d4650', axis: '#56616b', grid: '#e6eaed' },
  dark: { a: '#7db8e8', b: '#f0a04b', d: '#c3ccd4', axis: '#9aa6b0', grid: '#2a3138' },
} as const;

/** Layers of a stack, from the bottom. Light and dark alternate, so that neighbours differ without their hues, too. */
export const LAYERS = {
  light: ['#1f6299', '#9cc7e8', '#b8541a', '#f3c98f', '#c9d1d7', '#eef1f3'],
  dark: ['#2f7ab8', '#b5d8f2', '#b8641f', '#f6d2a2', '#55616b', '#262d33'],
} as const;

/** The width of an element in CSS pixels, followed as it changes. */
export function useWidth(element: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    // Before the browser draws: what needs the width is drawn with the rest.
    if (!element.current) return;
    const observer = new ResizeObserver((entries) => setWidth(Math.floor(entries[0]?.contentRect.width ?? 0)));
    observer.observe(element.current);
    setWidth(Math.floor(element.current.clientWidth));
    return () => observer.disconnect();
  }, []);
  return width;
}
