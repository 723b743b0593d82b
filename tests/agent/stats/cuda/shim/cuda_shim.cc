#include "tests/agent/stats/cuda/shim/cuda_shim.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/agent/stats/cuda/shim/fibre.h"
#if defined(STATCOLLECT_SHIM_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace cuda_shim {

const Place* place = nullptr;

namespace {

constexpr unsigned kLanes = 32, kThreadsResident = 1024;

// What ThreadSanitizer is to know: whoever acquires comes after those who released.
void Release([[maybe_unused]] const void* token) {
#if defined(STATCOLLECT_SHIM_TSAN)
  __tsan_release(const_cast<void*>(token));
#endif
}
void Acquire([[maybe_unused]] const void* token) {
#if defined(STATCOLLECT_SHIM_TSAN)
  __tsan_acquire(const_cast<void*>(token));
#endif
}

const char* Name(Meeting meeting) {
  constexpr const char* kNames[] = {"nothing", "__syncwarp",      "a shuffle",
                                    "a vote",  "__reduce_*_sync", "__syncthreads"};
  return kNames[static_cast<int>(meeting)];
}

// Containers and numbers here have types of this file: what a sanitized file would instantiate,
// too, must not be linked in its place.
class Numbers {
 public:
  using result_type = std::uint64_t;
  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return ~std::uint64_t{0}; }
  void Seed(std::uint64_t seed) { state_ = seed; }
  std::uint64_t operator()() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_ = 1;
};

struct Address {
  const void* at;
};

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes;
  bool committed;
};

struct Block;

struct Thread {
  Fibre fibre;
  Place where;
  Block* block = nullptr;
  std::vector<Copy> copies;
  bool fenced = false;
  std::vector<Address> read_atomically;  // since the last fence
  // Where it waits, and what it has brought and gets.
  Meeting meeting = Meeting::kNone;
  unsigned mask = 0, source = 0;
  std::int64_t given = 0, got = 0;
  Reduction reduction = Reduction::kAdd;

  unsigned lane() const { return where.thread.x % kLanes; }
};

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;
  std::unique_ptr<unsigned char, void (*)(void*)> shared{nullptr, std::free};
  unsigned running = 0;
  std::vector<std::array<char, 2>> warp_tokens;  // of odd and even meetings
  std::vector<unsigned> warp_meetings;
  char token = 0;
};

struct Scheduler {
  Numbers random;
  const std::function<void()>* kernel = nullptr;
  std::function<void()> host;
  Thread* current = nullptr;
  std::vector<Thread*> ready;
  std::vector<std::unique_ptr<Block>> resident, failed;
  std::vector<std::unique_ptr<Thread>> idle;
  std::string error;
  unsigned switch_one_in = 8;
  char launched = 0, ended = 0;
};
Scheduler& scheduler =
    *new Scheduler;  // to the end: threads of failed launches cannot be destroyed

std::string Describe(const Thread& thread) {
  std::ostringstream text;
  text << "block " << thread.where.block.x << " thread " << thread.where.thread.x;
  return text.str();
}

// The launch ends at the next StopIfFailed, which does not return then: nothing of the kernel's
// stack is destroyed.
void Fail(const std::string& message) {
  if (scheduler.error.empty()) scheduler.error = message;
}
void StopIfFailed() {
  if (scheduler.error.empty()) return;
  Release(&scheduler.ended);
  scheduler.current->fibre.Yield();
}

void Yield() { scheduler.current->fibre.Yield(); }

// --- meetings of lanes

// Gives each lane of the mask what it gets.
void Exchange(Thread** lanes, unsigned mask) {
  const Thread& any = *lanes[__builtin_ctz(mask)];
  std::int64_t total = any.reduction == Reduction::kAdd ? 0 : any.given;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    const std::int64_t given = lanes[lane]->given;
    if (any.meeting == Meeting::kVote) {
      total |= given << lane;
    } else if (any.reduction == Reduction::kAdd) {
      total = static_cast<std::int64_t>(static_cast<std::uint64_t>(total) +
                                        static_cast<std::uint64_t>(given));
    } else {
      total = any.reduction == Reduction::kMin ? std::min(total, given) : std::max(total, given);
    }
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    lanes[lane]->got = any.meeting == Meeting::kShuffle ? lanes[lanes[lane]->source]->given : total;
  }
}

std::int64_t MeetLanes(Meeting meeting, unsigned mask, std::int64_t given, unsigned source,
                       Reduction reduction = Reduction::kAdd) {
  Thread& own = *scheduler.current;
  own.meeting = meeting;
  own.mask = mask;
  own.given = given;
  own.source = source;
  own.reduction = reduction;
  if ((mask >> own.lane() & 1) == 0)
    Fail(Describe(own) + " is not in the mask of its " + Name(meeting));
  if ((mask >> source & 1) == 0) Fail(Describe(own) + " shuffles from a lane outside the mask");
  Block& block = *own.block;
  const unsigned warp = own.where.thread.x / kLanes;
  Thread* lanes[kLanes] = {};
  bool all_here = true;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    Thread& other = *block.threads.at(warp * kLanes + lane);
    lanes[lane] = &other;
    if (other.fibre.ended())
      Fail(Describe(own) + " waits at " + Name(meeting) +
           " for a lane that has ended: " + Describe(other));
    all_here = all_here && other.meeting != Meeting::kNone;
    if (other.meeting == Meeting::kNone) continue;
    if (other.meeting != meeting || other.mask != mask || other.reduction != reduction) {
      Fail("lanes of a warp meet at different functions: " + Describe(own) + " is at " +
           Name(meeting) + ", " + Describe(other) + " at " + Name(other.meeting));
    }
  }
  StopIfFailed();
  const char* const token = &block.warp_tokens[warp][block.warp_meetings[warp] % 2];
  if (meeting == Meeting::kSyncWarp) Release(token);
  if (all_here) {
    Exchange(lanes, mask);
    ++block.warp_meetings[warp];
    for (Thread* lane : lanes) {
      if (lane == nullptr) continue;
      lane->meeting = Meeting::kNone;
      if (lane != &own) scheduler.ready.push_back(lane);
    }
    MaySwitch();
  } else {
    Yield();
  }
  if (meeting == Meeting::kSyncWarp) Acquire(token);
  return own.got;
}

// --- the order

void Begin(void* argument) {
  Thread* const own = static_cast<Thread*>(argument);
  Acquire(&scheduler.launched);
  (*scheduler.kernel)();
  if (!own->copies.empty())
    Fail(Describe(*own) + " ended before its copies: nobody waited for them");
  StopIfFailed();
  Release(&scheduler.ended);
}

void Admit(unsigned block, const Grid& grid) {
  auto added = std::make_unique<Block>();
  added->running = grid.threads;
  added->warp_tokens.resize((grid.threads + kLanes - 1) / kLanes);
  added->warp_meetings.resize(added->warp_tokens.size());
  if (grid.shared_bytes > 0) {
    added->shared.reset(
        static_cast<unsigned char*>(std::aligned_alloc(16, (grid.shared_bytes + 15) / 16 * 16)));
    std::memset(added->shared.get(), 0xa5, grid.shared_bytes);
  }
  for (unsigned i = 0; i < grid.threads; ++i) {
    if (scheduler.idle.empty()) scheduler.idle.push_back(std::make_unique<Thread>());
    std::unique_ptr<Thread> thread = std::move(scheduler.idle.back());
    scheduler.idle.pop_back();
    thread->where = {{i}, {block}, {grid.threads}, {grid.blocks}};
    thread->block = added.get();
    thread->fenced = false;
    thread->read_atomically.clear();
    thread->fibre.Start(Begin, thread.get());
    scheduler.ready.push_back(thread.get());
    added->threads.push_back(std::move(thread));
  }
  scheduler.resident.push_back(std::move(added));
  Release(&scheduler.launched);
}

void Retire(Block* block) {
  Acquire(&scheduler.ended);
  const auto at = std::find_if(scheduler.resident.begin(), scheduler.resident.end(),
                               [&](const auto& each) { return each.get() == block; });
  for (auto& thread : block->threads) scheduler.idle.push_back(std::move(thread));
  scheduler.resident.erase(at);
}

std::string WhoWaits() {
  std::ostringstream text;
  text << "deadlock:";
  int told = 0;
  for (const auto& block : scheduler.resident) {
    for (const auto& thread : block->threads) {
      if (thread->fibre.ended()) continue;
      if (++told <= 8)
        text << (told > 1 ? "; " : " ") << Describe(*thread) << " at " << Name(thread->meeting);
    }
  }
  if (told > 8) text << "; and " << told - 8 << " more";
  return text.str();
}

void Step(bool mostly_newest) {
  auto& ready = scheduler.ready;
  const std::size_t at = mostly_newest && Random(4) != 0
                             ? ready.size() - 1
                             : Random(static_cast<unsigned>(ready.size()));
  Thread* const thread = ready[at];
  ready[at] = ready.back();
  ready.pop_back();
  scheduler.current = thread;
  place = &thread->where;
  thread->fibre.Resume();
  place = nullptr;
  scheduler.current = nullptr;
  if (scheduler.error.empty() && thread->fibre.ended() && --thread->block->running == 0)
    Retire(thread->block);
}

}  // namespace

void Seed(std::uint64_t seed) { scheduler.random.Seed(seed); }
void Meanwhile(std::function<void()> host) { scheduler.host = std::move(host); }
unsigned Random(unsigned end) { return static_cast<unsigned>(scheduler.random() % end); }

void Run(const Grid& grid, const std::function<void()>& kernel) {
  if (place != nullptr) throw KernelError("a kernel launches a kernel");
  std::vector<unsigned> blocks(grid.blocks);
  for (unsigned i = 0; i < grid.blocks; ++i) blocks[i] = i;
  std::shuffle(blocks.begin(), blocks.end(), scheduler.random);
  const unsigned resident_max =
      std::max(1u, std::min(1 + Random(4), kThreadsResident / grid.threads));
  const bool mostly_newest = Random(2) == 0;
  scheduler.switch_one_in = 4u << Random(5);
  scheduler.kernel = &kernel;
  while (scheduler.error.empty() && (!blocks.empty() || !scheduler.resident.empty())) {
    while (!blocks.empty() && scheduler.resident.size() < resident_max) {
      Admit(blocks.back(), grid);
      blocks.pop_back();
    }
    if (scheduler.ready.empty()) {
      scheduler.error = WhoWaits();
    } else {
      Step(mostly_newest);
      if (scheduler.host && Random(8) == 0) scheduler.host();
    }
  }
  Acquire(&scheduler.ended);
  scheduler.ready.clear();
  // After an error, with whatever their threads were doing: nothing orders it before a destructor.
  std::move(scheduler.resident.begin(), scheduler.resident.end(),
            std::back_inserter(scheduler.failed));
  scheduler.resident.clear();
  if (scheduler.error.empty()) return;
  scheduler.host = nullptr;  // what it refers to ends with the exception
  throw KernelError(std::exchange(scheduler.error, std::string()));
}

void MaySwitch() {
  if (scheduler.current == nullptr || Random(scheduler.switch_one_in) != 0) return;
  scheduler.ready.push_back(scheduler.current);
  Yield();
}

unsigned LaneOfWarp() { return scheduler.current->lane(); }

std::uint64_t ShuffleBits(unsigned mask, std::uint64_t bits, unsigned source) {
  return static_cast<std::uint64_t>(
      MeetLanes(Meeting::kShuffle, mask, static_cast<std::int64_t>(bits), source));
}
unsigned Vote(unsigned mask, bool value) {
  return static_cast<unsigned>(MeetLanes(Meeting::kVote, mask, value ? 1 : 0, LaneOfWarp()));
}
std::int64_t Reduce(unsigned mask, std::int64_t value, Reduction how) {
  return MeetLanes(Meeting::kReduce, mask, value, LaneOfWarp(), how);
}
void SyncWarp(unsigned mask) { (void)MeetLanes(Meeting::kSyncWarp, mask, 0, LaneOfWarp()); }

int SyncThreadsOr(int value) {
  Thread& own = *scheduler.current;
  Block& block = *own.block;
  own.meeting = Meeting::kSyncThreads;
  own.given = value;
  Release(&block.token);
  std::int64_t any = 0;
  bool all_here = true;
  for (const auto& thread : block.threads) {
    if (thread->fibre.ended())
      Fail(Describe(own) +
           " waits at __syncthreads for a thread that has ended: " + Describe(*thread));
    all_here = all_here && thread->meeting == Meeting::kSyncThreads;
    any |= thread->given;
  }
  StopIfFailed();
  if (all_here) {
    for (const auto& thread : block.threads) {
      thread->got = any;
      thread->meeting = Meeting::kNone;
      if (thread.get() != &own) scheduler.ready.push_back(thread.get());
    }
    MaySwitch();
  } else {
    Yield();
  }
  Acquire(&block.token);
  return own.got != 0;
}

// --- memory

void BeforeAtomic() { MaySwitch(); }
void AfterAtomic(const void* at) {
  if (scheduler.current != nullptr) {
    if (scheduler.current->fenced) Release(at);
    scheduler.current->fenced = false;
    scheduler.current->read_atomically.push_back({at});
  }
  MaySwitch();
}

void Fence() {
  MaySwitch();
  if (scheduler.current == nullptr) return;
  scheduler.current->fenced = true;
  for (const Address& each : scheduler.current->read_atomically) Acquire(each.at);
  scheduler.current->read_atomically.clear();
}

namespace {

void Make(const Copy& copy) {
  if (copy.bytes > 0) std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
  std::memset(copy.to + copy.bytes, 0, static_cast<std::size_t>(16 - copy.bytes));
}

}  // namespace
}  // namespace cuda_shim

namespace statcollect::stats::cuda {

using cuda_shim::scheduler;

void CopyAsync(void* to_shared, const void* from, int bytes) {
  cuda_shim::MaySwitch();
  cuda_shim::Copy copy = {static_cast<unsigned char*>(to_shared),
                          static_cast<const unsigned char*>(from), bytes, false};
  if (reinterpret_cast<std::uintptr_t>(to_shared) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % 16 != 0 || bytes < 0 || bytes > 16 ||
      from == nullptr) {
    cuda_shim::Fail(cuda_shim::Describe(*scheduler.current) +
                    " copies what is not 16 aligned bytes");
  }
  cuda_shim::StopIfFailed();
  if (cuda_shim::Random(2) == 0) {
    cuda_shim::Make(copy);
  } else {
    std::memset(copy.to, 0xd7, 16);
  }
  scheduler.current->copies.push_back(copy);  // made again, or only now, when somebody waits
}

void CommitCopies() {
  for (cuda_shim::Copy& copy : scheduler.current->copies) copy.committed = true;
}

void AwaitCopies() {
  auto& copies = scheduler.current->copies;
  for (const cuda_shim::Copy& copy : copies) {
    if (copy.committed) cuda_shim::Make(copy);
  }
  std::erase_if(copies, [](const cuda_shim::Copy& copy) { return copy.committed; });
  cuda_shim::MaySwitch();
}

unsigned char* BlockMemory() { return scheduler.current->block->shared.get(); }

void StoreForHost(std::uint64_t* to, std::uint64_t value) {
  cuda_shim::BeforeAtomic();
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
  cuda_shim::AfterAtomic(to);
}

}  // namespace statcollect::stats::cuda
