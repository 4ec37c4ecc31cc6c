import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.zip.GZIPInputStream;

/** Prints the body of an answer as it comes, through GZIPInputStream. */
class Decoder {
    public static void main(String[] arguments) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(arguments[0]))
            .header("Accept", arguments[1])
            .header("Accept-Encoding", "gzip")
            .build();
        var answer = HttpClient.newHttpClient().send(request, BodyHandlers.ofInputStream());
        if (answer.statusCode() != 200) throw new IllegalStateException("" + answer);
        try (InputStream body = new GZIPInputStream(answer.body())) {
            var piece = new byte[65536];
            for (int size; (size = body.read(piece)) >= 0; ) {
                System.out.write(piece, 0, size);
                System.out.flush();
            }
        }
    }
}
