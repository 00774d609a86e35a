// Browsers give no workers to pages that were opened as files; the search then works in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.append(frame);
      this.inside = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source !== this.inside) return;
        const told = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(told);
        if (this.onmessage) this.onmessage(told);
      });
      this.loaded = new Promise((resolve) => { frame.onload = resolve; });
      const text = this.inside.document;
      text.open();
      text.write(`<script>
        var postMessage = (data) => parent.postMessage(data, "*");
        var importScripts = async (...urls) => {
          for (const src of urls) await new Promise((done) => {
            document.head.append(Object.assign(document.createElement("script"), { src, onload: done, onerror: done }));
          });
        };
      </` + `script><script src="${new URL(url, location)}"></` + `script>`);
      text.close();
    }
    async postMessage(data) {
      await this.loaded;
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
