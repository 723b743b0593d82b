// Draws "exporting [=====>    ]  40 %, 1.2 M records/s" on standard error, in place, and erases it
// at the end.
#ifndef STATCOLLECT_CLIENT_RENDER_PROGRESS_BAR_H_
#define STATCOLLECT_CLIENT_RENDER_PROGRESS_BAR_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace statcollect::client {

// "950", "12.3 k", "1.2 M": about three digits, for speeds.
inline std::string FormatRate(double a_second) {
  if (a_second < 1000) return fmt::format("{:.0f}", a_second);
  if (a_second < 1e6) return fmt::format("{:.1f} k", a_second / 1e3);
  return fmt::format("{:.1f} M", a_second / 1e6);
}

// Not thread-safe. Draws at most ten times a second.
class ProgressBar {
 public:
  ProgressBar(std::string what, bool shown) : what_(std::move(what)), shown_(shown) {}
  ~ProgressBar() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `records` so far, for the speed; empty: no speed is shown.
  void Draw(std::uint64_t done, std::uint64_t total, std::optional<std::uint64_t> records = {}) {
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || total == 0 || (drawn_ && now - *drawn_ < kInterval)) return;
    constexpr std::size_t kWidth = 40;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const std::string filled(std::min(static_cast<std::size_t>(share * kWidth), kWidth), '=');
    std::string text = fmt::format("\r{} [{:<{}}] {:3.0f} %", what_, filled, kWidth, share * 100);
    if (records) {
      const double a_second = static_cast<double>(*records) / std::max(seconds(), 1e-3);
      text += fmt::format(", {} records/s", FormatRate(a_second));
    }
    std::fputs((text + " \x1b[K").c_str(), stderr);
    std::fflush(stderr);
    drawn_ = now;
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{100};
  const std::string what_;
  const bool shown_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::optional<std::chrono::steady_clock::time_point> drawn_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_PROGRESS_BAR_H_
