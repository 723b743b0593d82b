// A function with a stack of its own, which the caller and the function switch to and from.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_SHIM_FIBRE_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_SHIM_FIBRE_H_

#include <cstddef>
#include <memory>

namespace cuda_shim {

class Fibre {
 public:
  // 0: as much stack as a device's thread needs.
  explicit Fibre(std::size_t stack_bytes = 0);
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // The next Resume calls it. Precondition: the function before it has ended.
  void Start(void (*function)(void*), void* argument);
  // Runs the function until it calls Yield or ends.
  void Resume();
  // Of the running fibre: back to where Resume was called.
  void Yield();
  bool ended() const;

 private:
  struct State;
  static void Main(State* state);
  const std::unique_ptr<State> state_;
};

}  // namespace cuda_shim

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_SHIM_FIBRE_H_
