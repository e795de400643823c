package walgate

import java.io.{ByteArrayOutputStream, IOException}
import java.lang.{Boolean => JavaBoolean}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.FileAlreadyExistsException
import java.util.{Arrays, Iterator => JavaIterator}

import io.delta.storage.HadoopFileSystemLogStore
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}

/** Writes the commits of Delta tables in an object store, each only if its version is free.
  *
  * Delta's own store for S3 looks first and writes then, so it overwrites the commit of another
  * process. Here the store itself refuses the second writer.
  */
class ConditionalLogStore(conf: Configuration) extends HadoopFileSystemLogStore(conf) {

  override def write(
      path: Path, actions: JavaIterator[String], overwrite: JavaBoolean, hadoop: Configuration
  ): Unit = {
    val bytes = new ByteArrayOutputStream()
    actions.forEachRemaining(action => bytes.write((action + "\n").getBytes(UTF_8)))
    val store = path.getFileSystem(hadoop)
    try create(store, path, bytes.toByteArray, overwrite)
    catch {
      case refused: IOException if !overwrite && store.exists(path) =>
        // The reply to the first try may be lost, and the second one refused.
        if (!Arrays.equals(read(store, path), bytes.toByteArray)) {
          throw new FileAlreadyExistsException(path.toString)
        }
    }
  }

  override def isPartialWriteVisible(path: Path, hadoop: Configuration): JavaBoolean = false

  private def create(store: FileSystem, path: Path, bytes: Array[Byte], overwrite: Boolean): Unit = {
    val file = store.createFile(path).overwrite(true)
    if (!overwrite) file.must("fs.option.create.conditional.overwrite", true)
    val out = file.build()
    out.write(bytes)
    out.close()
  }

  private def read(store: FileSystem, path: Path): Array[Byte] = {
    val in = store.open(path)
    try in.readAllBytes()
    finally in.close()
  }
}
