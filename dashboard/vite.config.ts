import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// `npm run dev` serves the source, and asks a pool on this machine for its data.
export default defineConfig({
  plugins: [react()],
  base: "./",
  build: {
    outDir: "../coddl/web/dist",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the content security policy allows files, not data in them
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": "http://127.0.0.1:7433" } },
});
