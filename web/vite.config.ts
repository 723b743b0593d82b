import { defineConfig } from 'vite';

// Names without hashes: the collector serves every file with an ETag, and the committed bundle keeps its file names.
const names = {
  entryFileNames: 'assets/[name].js',
  chunkFileNames: 'assets/[name].js',
  assetFileNames: 'assets/[name][extname]',
};

export default defineConfig({
  build: {
    target: 'es2022',
    modulePreload: false, // there is one script
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: { output: { ...names, entryFileNames: 'assets/app.js' } },
  },
  worker: { format: 'es', rollupOptions: { output: names } },
  server: { proxy: { '/api': 'http://127.0.0.1:7434' } },
  test: { include: ['tests/**/*.test.ts'] },
} as Parameters<typeof defineConfig>[0]);
