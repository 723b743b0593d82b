// For test programs that use system gRPC or RocksDB, built without ThreadSanitizer: accesses inside
// them are not looked at. Its locks still are, and so is all of this project's code.
// (tests/support/tsan.supp has the rest: gRPC's templates inside our own objects.) Nobody calls
// this in other builds; __SANITIZE_THREAD__ says nothing here, see proto/CMakeLists.txt.
extern "C" __attribute__((visibility("default"), used)) const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
