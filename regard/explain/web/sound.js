/* Sound as the server reads it: WAV with 16 bits, one channel, 16,000 samples a second. */

const RATE = 16000;

// A WAV file of samples from -1 to 1.
export function wav(samples, rate = RATE) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes of the format: PCM, one channel
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((x, i) => view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(x, 1))), true));
  return new Uint8Array(view.buffer);
}

// Any recording that the browser can read, as WAV.
export async function toWav(blob) {
  const decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  const context = new OfflineAudioContext(1, Math.max(1, Math.ceil(decoded.duration * RATE)), RATE);
  const source = context.createBufferSource();
  source.buffer = decoded;
  source.connect(context.destination);
  source.start();
  return wav((await context.startRendering()).getChannelData(0));
}

// Begin to record; what is returned ends it and gives the recording as WAV.
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream), parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const stopped = new Promise((done) => { recorder.onstop = done; });
  recorder.start();
  return async () => {
    recorder.stop();
    await stopped;
    for (const track of stream.getTracks()) track.stop();
    return toWav(new Blob(parts, { type: recorder.mimeType }));
  };
}

export function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}
