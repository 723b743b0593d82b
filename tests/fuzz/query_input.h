// What the fuzz target of queries reads: a world of runs, and questions about it, as bytes. Numbers
// are mostly those at the ends of their types.
#ifndef STATCOLLECT_TESTS_FUZZ_QUERY_INPUT_H_
#define STATCOLLECT_TESTS_FUZZ_QUERY_INPUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace statcollect::fuzz {

// An operation is one of these bytes (modulo kOpCount) and what follows it, which QueryWorld and
// the target read.
enum class Op : std::uint8_t {
  kLaunch,     // run, world size
  kObserve,    // rank, step, key, tensor
  kPart,       // the same, of a tensor that is cut over ranks
  kScalar,     // rank, step, name, value, micro-batch
  kMemory,     // rank, step, micro-batch
  kDensity,    // rank, step, micro-batch
  kExponents,  // rank, step, key
  kEvent,      // rank, step, kind, two fields
  kSetting,    // rank, key, value
  kCapture,    // rank, step, key
  kAsk,        // question, its fields, when to stop
};
inline constexpr std::size_t kOpCount = static_cast<std::size_t>(Op::kAsk) + 1;

inline constexpr std::array<std::string_view, 4> kRuns = {"a", "b", "c", "no-such-run"};
inline constexpr std::array<std::string_view, 8> kTensors = {
    "x", "y", "layer.0.weight", "layer.1", "ids", "loss_fn", "module.x", "z"};
inline constexpr std::array<std::string_view, 8> kScalars = {"loss",
                                                             "grad_norm",
                                                             "optimizer/group0/lr",
                                                             "optimizer/group0/weight_decay",
                                                             "loss_scale",
                                                             "rng/cpu",
                                                             "lm loss",
                                                             "other"};

constexpr std::uint64_t Power(unsigned exponent) { return std::uint64_t{1} << exponent; }
// Of numbers; a byte of 0x40.. chooses one.
inline constexpr std::array<std::uint64_t, 24> kEnds = {0,
                                                        1,
                                                        2,
                                                        3,
                                                        9,
                                                        15,
                                                        16,
                                                        17,
                                                        1023,
                                                        1024,
                                                        Power(31) - 1,
                                                        Power(31),
                                                        Power(32) - 1,
                                                        Power(32),
                                                        Power(53),
                                                        Power(63) - 2,
                                                        Power(63) - 1,
                                                        Power(63),
                                                        Power(63) + 1,
                                                        ~std::uint64_t{0} - 17,
                                                        ~std::uint64_t{0} - 16,
                                                        ~std::uint64_t{0} - 2,
                                                        ~std::uint64_t{0} - 1,
                                                        ~std::uint64_t{0}};
inline constexpr std::array<double, 12> kReals = {0,
                                                  -0.0,
                                                  1,
                                                  -1,
                                                  1e-3,
                                                  0.5,
                                                  std::numeric_limits<double>::quiet_NaN(),
                                                  std::numeric_limits<double>::infinity(),
                                                  -std::numeric_limits<double>::infinity(),
                                                  std::numeric_limits<double>::max(),
                                                  std::numeric_limits<double>::denorm_min(),
                                                  1e300};

class QueryInput {
 public:
  explicit QueryInput(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  std::uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  bool Flag() { return (Byte() & 1) != 0; }
  template <typename Table>
  const auto& OneOf(const Table& table) {
    return table[Byte() % std::size(table)];
  }
  // 0 to 15; one of kEnds; or eight bytes, the lowest first.
  std::uint64_t Number() {
    const std::uint8_t choice = Byte();
    if (choice < 0x40) return choice % 16;
    if (choice < 0xf0) return kEnds[(choice - 0x40u) % kEnds.size()];
    std::uint64_t number = 0;
    for (unsigned shift = 0; shift < 64; shift += 8) number |= std::uint64_t{Byte()} << shift;
    return number;
  }
  std::uint32_t Small() { return static_cast<std::uint32_t>(Number()); }
  double Real() { return OneOf(kReals); }
  std::string Run() { return std::string(OneOf(kRuns)); }
  // For StepSet::Parse, mostly valid.
  std::string Steps() {
    std::string text;
    for (int parts = Byte() % 4; parts > 0; --parts) {
      text += text.empty() ? "" : ",";
      switch (Byte() % 5) {
        case 0:
          text += std::to_string(Number());
          break;
        case 1:
          text += std::to_string(Number()) + "-";
          break;
        case 2:
          text += std::to_string(Number()) + "-" + std::to_string(Number());
          break;
        case 3:
          text += "every=" + std::to_string(Number());
          break;
        default:
          text += Text();
      }
    }
    return text;
  }
  std::string Text() {  // UTF-8, as gRPC delivers it
    std::string text;
    for (int length = Byte() % 8; length > 0; --length) text += static_cast<char>(Byte() & 0x7f);
    return text;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace statcollect::fuzz

#endif  // STATCOLLECT_TESTS_FUZZ_QUERY_INPUT_H_
