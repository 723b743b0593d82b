// A mutex, a lock and a condition variable that clang's thread-safety analysis understands: it
// proves that what is STATCOLLECT_GUARDED_BY a mutex is touched with that mutex held.
// scripts/lint.sh runs the analysis; other compilers see std::mutex and std::condition_variable and
// nothing else. https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#ifndef STATCOLLECT_COMMON_THREAD_ANNOTATIONS_H_
#define STATCOLLECT_COMMON_THREAD_ANNOTATIONS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <utility>

#if defined(__clang__)
#define STATCOLLECT_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define STATCOLLECT_THREAD_ATTRIBUTE(x)
#endif

// On a member: read and written only while the mutex is held.
#define STATCOLLECT_GUARDED_BY(mutex) STATCOLLECT_THREAD_ATTRIBUTE(guarded_by(mutex))
// On a function: the caller holds the mutex.
#define STATCOLLECT_REQUIRES(...) STATCOLLECT_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
// On a function: the caller holds the mutex, shared with other readers at least.
#define STATCOLLECT_REQUIRES_SHARED(...) \
  STATCOLLECT_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
// On a function that the analysis cannot follow. Say why beside it.
#define STATCOLLECT_NO_THREAD_SAFETY_ANALYSIS \
  STATCOLLECT_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace statcollect {

class STATCOLLECT_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() STATCOLLECT_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() STATCOLLECT_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  // Tells the analysis what it cannot see: the caller holds the mutex, under the name of another
  // object. Checks nothing.
  void AssertHeld() const STATCOLLECT_THREAD_ATTRIBUTE(assert_capability(this)) {}
  bool try_lock() STATCOLLECT_THREAD_ATTRIBUTE(try_acquire_capability(true)) {
    return mutex_.try_lock();
  }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Holds a mutex while it lives, except between unlock() and lock().
class STATCOLLECT_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) STATCOLLECT_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() STATCOLLECT_THREAD_ATTRIBUTE(release_capability()) {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() STATCOLLECT_THREAD_ATTRIBUTE(acquire_capability()) {
    mutex_.lock();
    held_ = true;
  }
  void unlock() STATCOLLECT_THREAD_ATTRIBUTE(release_capability()) {
    held_ = false;
    mutex_.unlock();
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// Many readers or one writer.
class STATCOLLECT_THREAD_ATTRIBUTE(capability("mutex")) SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() STATCOLLECT_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() STATCOLLECT_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  void lock_shared() STATCOLLECT_THREAD_ATTRIBUTE(acquire_shared_capability()) {
    mutex_.lock_shared();
  }
  void unlock_shared() STATCOLLECT_THREAD_ATTRIBUTE(release_shared_capability()) {
    mutex_.unlock_shared();
  }

 private:
  std::shared_mutex mutex_;
};

class STATCOLLECT_THREAD_ATTRIBUTE(scoped_lockable) WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) STATCOLLECT_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~WriterLock() STATCOLLECT_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class STATCOLLECT_THREAD_ATTRIBUTE(scoped_lockable) ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex)
      STATCOLLECT_THREAD_ATTRIBUTE(acquire_shared_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock_shared();
  }
  ~ReaderLock() STATCOLLECT_THREAD_ATTRIBUTE(release_generic_capability()) {
    mutex_.unlock_shared();
  }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// std::condition_variable for Mutex. Each wait releases the mutex and holds it again when it
// returns, so to the caller it is held throughout. A predicate is called with the mutex held:
// annotate it with STATCOLLECT_REQUIRES.
class ConditionVariable {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

  void wait(Mutex& mutex) STATCOLLECT_REQUIRES(mutex) {
    Native native(mutex);
    changed_.wait(native.lock);
  }
  template <typename Predicate>
  void wait(Mutex& mutex, Predicate done) STATCOLLECT_REQUIRES(mutex) {
    Native native(mutex);
    changed_.wait(native.lock, std::move(done));
  }
  template <typename Clock, typename Duration>
  std::cv_status wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& deadline)
      STATCOLLECT_REQUIRES(mutex) {
    Native native(mutex);
    return changed_.wait_until(native.lock, deadline);
  }
  // Returns what `done` says at the end; false: the deadline came first.
  template <typename Clock, typename Duration, typename Predicate>
  bool wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& deadline,
                  Predicate done) STATCOLLECT_REQUIRES(mutex) {
    Native native(mutex);
    return changed_.wait_until(native.lock, deadline, std::move(done));
  }
  template <typename Rep, typename Period, typename Predicate>
  bool wait_for(Mutex& mutex, const std::chrono::duration<Rep, Period>& duration, Predicate done)
      STATCOLLECT_REQUIRES(mutex) {
    Native native(mutex);
    return changed_.wait_for(native.lock, duration, std::move(done));
  }

 private:
  // The std::mutex as the standard library waits with it; held before and after.
  struct Native {
    explicit Native(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Native() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };
  std::condition_variable changed_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_THREAD_ANNOTATIONS_H_
