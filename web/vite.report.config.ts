import { createHash } from 'node:crypto';
import { defineConfig, type Plugin } from 'vite';

// One file with everything in it. Its policy names the script and the styles by their hashes, so that nothing else runs in it,
// whatever the data says. statctl puts the data in the place of DATA.
function oneFile(): Plugin {
  const hash = (text: string) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
  return {
    name: 'one-file',
    enforce: 'post',
    generateBundle(_, bundle) {
      let script = '';
      let styles = '';
      for (const [name, file] of Object.entries(bundle)) {
        if (file.type === 'chunk') script += file.code;
        else if (name.endsWith('.css')) styles += String(file.source);
        delete bundle[name];
      }
      script = script.replaceAll('</script', '<\\/script');
      const policy = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(styles)}; img-src data:; base-uri 'none'; form-action 'none'`;
      const source = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>statcollect</title>
<style>${styles}</style></head><body><div id="app"></div>
<noscript>This report needs JavaScript.</noscript>
<script type="application/json" id="data">@DATA@</script>
<script>${script}</script></body></html>
`;
      this.emitFile({ type: 'asset', fileName: 'report.html', source });
    },
  };
}

export default defineConfig({
  publicDir: false,
  plugins: [oneFile()],
  build: {
    target: 'es2022',
    modulePreload: false,
    cssCodeSplit: false,
    reportCompressedSize: false,
    rollupOptions: { input: 'src/report.tsx', output: { format: 'iife', entryFileNames: 'report.js', assetFileNames: 'report[extname]' } },
  },
});
