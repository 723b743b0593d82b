#include "tests/agent/stats/cuda/shim/fibre.h"

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#define STATCOLLECT_OWN_SWITCH 1  // ucontext's asks the kernel for the signal mask each time
#else
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(STATCOLLECT_SHIM_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(STATCOLLECT_OWN_SWITCH)
// Saves the registers that a call keeps and the stack pointer to *from, and takes them from `to`.
extern "C" void statcollect_shim_switch(void** from, void* to);
asm(R"(
.text
.globl statcollect_shim_switch
.type statcollect_shim_switch, @function
statcollect_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size statcollect_shim_switch, . - statcollect_shim_switch
)");
#endif

namespace cuda_shim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(STATCOLLECT_SHIM_TSAN)
constexpr std::size_t kStackBytes = 256 << 10;
#else
constexpr std::size_t kStackBytes = 64 << 10;
#endif

}  // namespace

struct Fibre::State {
  explicit State(std::size_t bytes) : stack_bytes(bytes), stack(new unsigned char[bytes]) {}

  const std::size_t stack_bytes;
  const std::unique_ptr<unsigned char[]> stack;
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
  bool ended = true, started = false;
#if defined(STATCOLLECT_OWN_SWITCH)
  void* own = nullptr;
  void* caller = nullptr;
  static State* starting;
  static void Entry() { Main(starting); }
#else
  ucontext_t own, caller;
  static void Entry(unsigned high, unsigned low) {
    Main(reinterpret_cast<State*>(static_cast<std::uintptr_t>(high) << 32 | low));
  }
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  void* caller_fake_stack = nullptr;
  const void* caller_stack = nullptr;
  std::size_t caller_bytes = 0;
#endif
#if defined(STATCOLLECT_SHIM_TSAN)
  void* const thread = __tsan_create_fiber(0);
  void* caller_thread = nullptr;
#endif

  void ToFibre() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&caller_fake_stack, stack.get(), stack_bytes);
#endif
#if defined(STATCOLLECT_SHIM_TSAN)
    caller_thread = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(STATCOLLECT_OWN_SWITCH)
    statcollect_shim_switch(&caller, own);
#else
    swapcontext(&caller, &own);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(caller_fake_stack, nullptr, nullptr);
#endif
  }

  void ToCaller() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack, caller_stack, caller_bytes);
#endif
#if defined(STATCOLLECT_SHIM_TSAN)
    __tsan_switch_to_fiber(caller_thread, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(STATCOLLECT_OWN_SWITCH)
    statcollect_shim_switch(&own, caller);
#else
    swapcontext(&own, &caller);
#endif
    Arrived();
  }

  void Arrived() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &caller_stack, &caller_bytes);
#endif
  }
};

#if defined(STATCOLLECT_OWN_SWITCH)
Fibre::State* Fibre::State::starting = nullptr;
#endif

void Fibre::Main(State* state) {
  state->Arrived();
  while (true) {
    state->function(state->argument);
    state->ended = true;
    state->ToCaller();
  }
}

Fibre::Fibre(std::size_t stack_bytes)
    : state_(std::make_unique<State>(stack_bytes == 0 ? kStackBytes : stack_bytes)) {}

Fibre::~Fibre() {
#if defined(STATCOLLECT_SHIM_TSAN)
  __tsan_destroy_fiber(state_->thread);
#endif
}

void Fibre::Start(void (*function)(void*), void* argument) {
  state_->function = function;
  state_->argument = argument;
  state_->ended = false;
  if (state_->started) return;  // it waits for its next function
  state_->started = true;
#if defined(STATCOLLECT_OWN_SWITCH)
  // As if the function had been called from nowhere, so that the stack is aligned as after a call.
  auto top = reinterpret_cast<std::uintptr_t>(state_->stack.get() + state_->stack_bytes) / 16 * 16;
  auto** at = reinterpret_cast<void**>(top);
  *--at = nullptr;
  *--at = reinterpret_cast<void*>(&State::Entry);
  for (int saved = 0; saved < 6; ++saved) *--at = nullptr;
  state_->own = at;
#else
  getcontext(&state_->own);
  state_->own.uc_stack.ss_sp = state_->stack.get();
  state_->own.uc_stack.ss_size = state_->stack_bytes;
  state_->own.uc_link = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(state_.get());
  makecontext(&state_->own, reinterpret_cast<void (*)()>(&State::Entry), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
#endif
}

void Fibre::Resume() {
#if defined(STATCOLLECT_OWN_SWITCH)
  State::starting = state_.get();
#endif
  state_->ToFibre();
}

void Fibre::Yield() { state_->ToCaller(); }

bool Fibre::ended() const { return state_->ended; }

}  // namespace cuda_shim
