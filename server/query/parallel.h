#ifndef STATCOLLECT_SERVER_QUERY_PARALLEL_H_
#define STATCOLLECT_SERVER_QUERY_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace statcollect::query {

// Maximum number of threads of a query, including the caller's.
inline constexpr std::size_t kThreadsMax = 4;

inline std::size_t ThreadsOfAQuery() {
  return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kThreadsMax);
}

// Runs work(0) .. work(count - 1), started in this order, on a few threads, including the caller's
// once it has run `mine`. Returns when all have ended. None of them may throw.
template <typename Mine, typename Work>
void InParallelWith(const Mine& mine, std::size_t count, const Work& work,
                    std::size_t threads = ThreadsOfAQuery()) {
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> helpers;
  for (std::size_t n = std::min(count + 1, threads); n > 1; --n) helpers.emplace_back(run);
  mine();
  run();
}

template <typename Work>
void InParallel(std::size_t count, const Work& work) {
  if (count == 0) return;
  InParallelWith([] {}, count, work, std::min(count, ThreadsOfAQuery()));
}

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_PARALLEL_H_
