import { defineConfig, type Plugin } from 'vite';

// Names without hashes: the collector serves every file with an ETag, and the committed bundle keeps its file names.
const names = {
  entryFileNames: 'assets/[name].js',
  chunkFileNames: 'assets/[name].js',
  assetFileNames: 'assets/[name][extname]',
};

// The script that asks the collector is a file of its own, which runs as soon as it is there.
function earlyScript(): Plugin {
  return {
    name: 'early-script',
    apply: 'build',
    transformIndexHtml: () => [
      { tag: 'script', attrs: { type: 'module', async: true, crossorigin: true, fetchpriority: 'high', src: '/assets/early.js' }, injectTo: 'head-prepend' },
    ],
  };
}

export default defineConfig({
  plugins: [earlyScript()],
  build: {
    target: 'es2022',
    modulePreload: false, // index.html names both scripts
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: { input: { app: 'index.html', early: 'src/early.ts' }, output: names },
  },
  worker: { format: 'es', rollupOptions: { output: names } },
  server: { proxy: { '/api': 'http://127.0.0.1:7434' } },
  test: { include: ['tests/**/*.test.ts'] },
} as Parameters<typeof defineConfig>[0]);
