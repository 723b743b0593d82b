// Arithmetic that stops at the ends of its type instead of wrapping, and loops that reach the last
// value of theirs. For steps, ranks, calls, micro-batches and windows of them: they come from
// outside and may be 0 or 2^64-1.
#ifndef STATCOLLECT_COMMON_SATURATING_H_
#define STATCOLLECT_COMMON_SATURATING_H_

#include <concepts>
#include <limits>
#include <type_traits>

namespace statcollect {

template <std::unsigned_integral T>
constexpr T SaturatingAdd(T a, std::type_identity_t<T> b) {
  constexpr T kMax = std::numeric_limits<T>::max();
  return a > kMax - b ? kMax : static_cast<T>(a + b);
}

template <std::unsigned_integral T>
constexpr T SaturatingSub(T a, std::type_identity_t<T> b) {
  return a > b ? static_cast<T>(a - b) : T{0};
}

template <std::unsigned_integral T>
constexpr T SaturatingMul(T a, std::type_identity_t<T> b) {
  constexpr T kMax = std::numeric_limits<T>::max();
  return b != 0 && a > kMax / b ? kMax : static_cast<T>(a * b);
}

// Every number from `first` to `last`, both included; none if `last` is lower. For `for (const auto
// step : Closed(..))`.
template <std::unsigned_integral T>
class Closed {
 public:
  constexpr Closed(T first, std::type_identity_t<T> last) : first_(first), last_(last) {}

  struct End {};
  class Iterator {
   public:
    constexpr Iterator(T first, T last) : at_(first), last_(last), over_(last < first) {}
    constexpr T operator*() const { return at_; }
    constexpr Iterator& operator++() {
      over_ = at_ == last_;
      if (!over_) ++at_;
      return *this;
    }
    constexpr bool operator!=(End) const { return !over_; }

   private:
    T at_, last_;
    bool over_;
  };
  constexpr Iterator begin() const { return {first_, last_}; }
  constexpr End end() const { return {}; }

 private:
  T first_, last_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_SATURATING_H_
