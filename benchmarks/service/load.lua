-- For wrk: an optional pause before each request, and one line of JSON at the end.
local pause = tonumber(os.getenv("PULSE_LOAD_PAUSE_MS") or "0")

if pause > 0 then
  function delay()
    return math.floor(pause * (0.5 + math.random()))
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\nJSON {"requests":%d,"seconds":%.6f,"p50_ms":%.3f,"p99_ms":%.3f,"max_ms":%.3f,"bytes":%d,"not_2xx":%d,"broken":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency.max / 1e3, summary.bytes, errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
